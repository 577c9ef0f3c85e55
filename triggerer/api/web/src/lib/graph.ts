// Turns the API's graph of assets into the nodes and edges of a drawing.

import type { Edge, Node } from './layout'
import { link, path } from './router.svelte'

export type GraphAnswer = {
  nodes: { id: string; kind: string; label?: string; name?: string; state?: string | null; detail?: string | null }[]
  edges: [string, string][] | { source: string; target: string }[]
  is_cut_short?: boolean
}

export function graphOf(answer: GraphAnswer): { nodes: Node[]; edges: Edge[] } {
  const nodes = answer.nodes.map((one) => {
    const label = one.label ?? one.name ?? one.id
    return { ...one, label, href: hrefOf(one.kind, label) }
  })
  const edges = answer.edges.map((edge) => (Array.isArray(edge) ? edge : [edge.source, edge.target]) as Edge)
  return { nodes, edges }
}

function hrefOf(kind: string, label: string): string {
  if (kind === 'dag') return link(path('dags', label))
  if (kind === 'group') return link('/assets', { group: label })
  if (kind === 'watcher') return link('/assets', { name: label.slice(0, label.lastIndexOf('/')) })
  return link('/assets', { name: label })
}
