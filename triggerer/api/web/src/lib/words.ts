// Sentences and short descriptions that several screens share.

import { duration, instant, oneLine, shell } from './format'
import type { AssetEvent } from './types'

/** Return the topic, partition and offset of the event's message if the event has them, else the idempotency key. */
export function messageOf(event: Pick<AssetEvent, 'extra' | 'idempotency_key'>): string {
  const { topic, partition, offset } = event.extra ?? {}
  if (typeof topic === 'string' && typeof partition === 'number' && typeof offset === 'number')
    return `${topic}/${partition}/${offset}`
  return event.idempotency_key ?? ''
}

const PROPERTIES = ['topic', 'partition', 'offset', 'queue', 'subscription', 'entity', 'message_id', 'key', 'group_id', 'ordering_key', 'session_id', 'sequence_number', 'timestamp', 'headers', 'attributes', 'properties']

/**
 * Return the properties of the broker's message that the event has, such as its offset: pairs of name and value.
 *
 * `chosen`: the `extra` of the watcher's arguments, in which `@` begins the path of a property. Null: the default names.
 */
export function propertiesOf(event: AssetEvent, chosen: unknown): [string, string][] {
  const extra = event.extra ?? {}
  const paths: [string, unknown][] =
    chosen && typeof chosen === 'object'
      ? Object.entries(chosen).flatMap(([name, path]) => (typeof path === 'string' && /^@(?!value|cel)/.test(path) ? [[path.slice(1), extra[name]] as [string, unknown]] : []))
      : PROPERTIES.map((name) => [name, extra[name]])
  // The key of a Kafka message is `topic@topic id/partition/offset`.
  const place = /^([^/@]+)@[\w-]+\/(\d+)\/(\d+)/.exec(event.idempotency_key ?? '')
  const missing = ['topic', 'partition', 'offset'].flatMap((name, index): [string, unknown][] =>
    !place || paths.some(([other, value]) => other === name && value !== undefined) ? [] : [[name, place[index + 1]]],
  )
  paths.unshift(...missing)
  return paths.flatMap(([name, value]) => propertyOf(name, value))
}

function propertyOf(name: string, value: unknown): [string, string][] {
  if (value === null || value === undefined) return []
  if (name === 'timestamp' && typeof value === 'number') return [[name, `${instant(new Date(value).toISOString())} UTC`]]
  if (typeof value !== 'object') return [[name, String(value)]]
  return Object.entries(value).map(([part, one]) => [`${name}.${part}`, typeof one === 'string' ? one : JSON.stringify(one)])
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

/** Return the first line of an error, with numbers and quoted texts replaced, so that equal kinds have equal texts. */
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

/** Return what changed, field by field: `is_paused: false → true`. */
export function changeInWords(before: unknown, after: unknown): string {
  const isObject = (one: unknown): one is Json => typeof one === 'object' && one !== null && !Array.isArray(one)
  const text = (one: unknown) => (typeof one === 'string' ? one : JSON.stringify(one))
  const isThere = (one: unknown) => one !== null && one !== undefined
  if (!isObject(before ?? {}) || !isObject(after ?? {})) return [before, after].filter(isThere).map(text).join(' → ')
  const [old, now] = [(before ?? {}) as Json, (after ?? {}) as Json]
  const names = [...new Set([...Object.keys(old), ...Object.keys(now)])]
  const change = (was: unknown, is: unknown) => [...(isThere(was) ? [text(was)] : []), isThere(is) ? text(is) : 'none'].join(' → ')
  return names.map((name) => `${name}: ${change(old[name], now[name])}`).join(', ')
}
