// Sentences and short descriptions that several screens share.

import { duration, oneLine, shell } from './format'
import type { AssetEvent } from './types'

/** Return the message's place in its topic if the event has it, else its key. */
export function messageOf(event: Pick<AssetEvent, 'extra' | 'idempotency_key'>): string {
  const { topic, partition, offset } = event.extra ?? {}
  if (typeof topic === 'string' && typeof partition === 'number' && typeof offset === 'number')
    return `${topic}/${partition}/${offset}`
  return event.idempotency_key ?? ''
}

type Json = Record<string, any>

/** Return a schedule in words. */
export function scheduleInWords(schedule: Json | null): string {
  if (!schedule) return 'by hand only'
  if (schedule['timetable']) return timetableInWords(schedule['timetable'])
  if (schedule['either']) return `${timetableInWords(schedule['either'].timetable)}, or on ${conditionInWords(schedule['either'].assets)}`
  if (schedule['both']) return `${timetableInWords(schedule['both'].timetable)}, once there is ${conditionInWords(schedule['both'].assets)}`
  if (schedule['partitioned']) return `for each partition key of ${conditionInWords(schedule['partitioned'].assets)}`
  return `on ${conditionInWords(schedule)}`
}

function timetableInWords(timetable: any): string {
  if (typeof timetable === 'string') return timetable
  const arguments_ = timetable?.arguments ?? timetable?.args ?? timetable?.kwargs ?? timetable ?? {}
  const cron = arguments_.cron ?? arguments_.expression
  if (typeof cron === 'string') return `cron ${cron}${arguments_.timezone && arguments_.timezone !== 'UTC' ? ' ' + arguments_.timezone : ''}`
  const delta = arguments_.delta ?? arguments_.seconds
  if (typeof delta === 'number') return `every ${duration(delta)}`
  const name = timetable?.type
  return typeof name === 'string' ? name : JSON.stringify(timetable)
}

export function conditionInWords(condition: any, isNested = false): string {
  if (!condition || typeof condition !== 'object') return String(condition)
  for (const [kind, sign] of [['all', ' and '], ['any', ' or ']] as const) {
    const parts = condition[kind]
    if (Array.isArray(parts)) {
      const shown = parts.slice(0, 6).map((part: any) => conditionInWords(part, true))
      if (parts.length > 6) shown.push(`${parts.length - 6} more`)
      const text = shown.join(sign)
      return isNested && parts.length > 1 ? `(${text})` : text
    }
  }
  if (condition.alias) return `alias ${typeof condition.alias === 'string' ? condition.alias : condition.alias.name}`
  const asset = condition.asset ?? condition
  return typeof asset === 'string' ? asset : (asset.name ?? asset.uri ?? JSON.stringify(asset))
}

export function command(...words: string[]): string {
  return ['triggerer', ...words.map(shell)].join(' ')
}

/** Return the first line of an error without what differs from message to message, to group by. */
export function errorKind(error: string | null): string {
  if (!error) return 'no error was recorded'
  return oneLine(error)
    .replace(/0x[0-9a-f]+/gi, '0x…')
    .replace(/\b\d[\d.,:_-]*\b/g, '…')
    .replace(/(['"]).{1,80}?\1/g, '$1…$1')
    .slice(0, 160)
}

export function isSafeLink(url: unknown): url is string {
  return typeof url === 'string' && /^https?:\/\//i.test(url)
}
