import { shortInstant } from './format'
import type { Stream } from './types'

/** An owner reports at least every 30 s. After three missing reports, the last report is outdated. */
const OUTDATED_MS = 90_000

/** Return whether the owner's last report was outdated when the page read it, at `readAt` in milliseconds. */
export function isOutdated(one: Stream, readAt: number | null): boolean {
  return !!one.owner && one.reported_at !== null && readAt !== null && readAt - Date.parse(one.reported_at) > OUTDATED_MS
}

/**
 * Return the state of a stream as a word, and the kind of sign that it gets.
 *
 * A stream keeps up if its lag is known and small, and if watchers take its messages as they come.
 * `readAt`: when the page read the stream, in milliseconds.
 */
export function streamState(one: Stream, readAt: number | null): { kind: string; word: string } {
  const isTaken = !!one.watchers['running']
  if (one.watchers['failing'] && !isTaken) return { kind: 'failing', word: 'failing' }
  if (!one.owner) return { kind: 'waiting', word: 'no owner' }
  if (isOutdated(one, readAt)) return { kind: 'unknown', word: `not known since ${shortInstant(one.reported_at, readAt!)}` }
  if (one.paused) return { kind: 'paused', word: 'paused' }
  if ((one.lag_seconds ?? 0) > 60 && one.lag) return { kind: 'behind', word: 'behind' }
  if (one.id.startsWith('trigger-')) return { kind: 'running', word: 'running' }
  if (one.reported_at === null) return { kind: 'unknown', word: 'no report' }
  if (one.watchers['catching_up'] && !isTaken) return { kind: 'catching_up', word: 'catching up' }
  if (one.watchers['waiting'] && !isTaken) return { kind: 'waiting', word: 'waiting' }
  if (one.lag === null) return { kind: 'running', word: 'running' }
  return { kind: 'good', word: 'keeps up' }
}
