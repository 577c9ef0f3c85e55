// A log is read in ranges of bytes, never as a whole.

import { ask, Problem } from './api.svelte'
import { asSearch } from './router.svelte'

export const RANGE = 65_536

export type Piece = { from: number; to: number; total: number; bytes: Uint8Array }

/** Read at most `most` bytes from `from` on; null: the last bytes. An empty piece: there is nothing after `from` yet. */
export async function readLog(url: string, from: number | null, most: number, signal: AbortSignal): Promise<Piece> {
  const query = from === null ? { tail: most } : { offset: from, limit: most }
  const answer = await ask(`${url}?${asSearch(query)}`, { signal, headers: { accept: 'text/plain, application/problem+json' } })
  const bytes = new Uint8Array(await answer.arrayBuffer())
  const range = /bytes (\d+)-\d+\/(\d+)/.exec(answer.headers.get('content-range') ?? '')
  const start = Number(range?.[1] ?? answer.headers.get('x-log-offset') ?? from ?? 0)
  const total = Number(range?.[2] ?? answer.headers.get('x-log-size') ?? start + bytes.length)
  return { from: start, to: start + bytes.length, total, bytes }
}

export { Problem }
