import type { Stream } from './types'

/** Return the state of a stream as a word, and the kind of sign that it gets. */
export function streamState(one: Stream): { kind: string; word: string } {
  if (one.watchers['failing'] && !one.watchers['running']) return { kind: 'failing', word: 'failing' }
  if (!one.owner) return { kind: 'waiting', word: 'no owner' }
  if (one.paused) return { kind: 'paused', word: 'paused' }
  if ((one.lag_seconds ?? 0) > 60 && one.lag) return { kind: 'behind', word: 'behind' }
  if (one.id.startsWith('trigger-')) return { kind: 'running', word: 'running' }
  if (one.reported_at === null) return { kind: 'unknown', word: 'no report' }
  return { kind: 'good', word: 'keeps up' }
}
