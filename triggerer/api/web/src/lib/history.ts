import type { History, Stream } from './types'

const MINUTE = 60_000

/** Return a point for each minute: its start in seconds since 1970, the lag, and the number of messages that came. */
export function pointsOf(one: Stream): [number, number | null, number | null][] {
  const history = one.history
  if (!history) return []
  const since = Date.parse(history.since) / 1000
  const last = history.lag.length - 1
  // The last minute is not over, so its number of messages is not known yet.
  return history.lag.map((lag, index) => [since + 60 * index, lag, index === last ? null : (history.consumed[index] ?? null)])
}

/** Add the histories of several streams up, minute by minute. Null: no stream has one. */
export function sumOf(streams: Stream[]): History | null {
  const known = streams.flatMap((one) => (one.history ? [one.history] : []))
  if (!known.length) return null
  const first = Math.min(...known.map((one) => Date.parse(one.since)))
  const indexOf = (one: History) => Math.round((Date.parse(one.since) - first) / MINUTE)
  const length = Math.min(1440, Math.max(...known.map((one) => indexOf(one) + one.lag.length)))
  const sum = (name: 'lag' | 'consumed') => {
    const total: (number | null)[] = new Array(length).fill(null)
    for (const one of known)
      one[name].forEach((value, index) => {
        const at = indexOf(one) + index
        if (value !== null && at < length) total[at] = (total[at] ?? 0) + value
      })
    return total
  }
  return { since: new Date(first).toISOString(), lag: sum('lag'), consumed: sum('consumed').slice(0, -1) }
}
