import type { Stream } from './types'

/**
 * Return the state of a stream as a word, and the kind of sign that it gets.
 *
 * A stream keeps up if its lag is known and small, and if watchers take its messages as they come.
 */
export function streamState(one: Stream): { kind: string; word: string } {
  const isTaken = !!one.watchers['running']
  if (one.watchers['failing'] && !isTaken) return { kind: 'failing', word: 'failing' }
  if (!one.owner) return { kind: 'waiting', word: 'no owner' }
  if (one.paused) return { kind: 'paused', word: 'paused' }
  if ((one.lag_seconds ?? 0) > 60 && one.lag) return { kind: 'behind', word: 'behind' }
  if (one.id.startsWith('trigger-')) return { kind: 'running', word: 'running' }
  if (one.reported_at === null) return { kind: 'unknown', word: 'no report' }
  if (one.watchers['catching_up'] && !isTaken) return { kind: 'catching_up', word: 'catching up' }
  if (one.watchers['waiting'] && !isTaken) return { kind: 'waiting', word: 'waiting' }
  if (one.lag === null) return { kind: 'running', word: 'running' }
  return { kind: 'good', word: 'keeps up' }
}
