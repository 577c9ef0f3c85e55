// Times, numbers and sizes as people read them.

import { serviceNow } from './time'

const number = new Intl.NumberFormat('en')

export function count(value: number | null | undefined, one?: string, many?: string): string {
  const shown = value === null || value === undefined ? '?' : number.format(value)
  if (one === undefined) return shown
  return `${shown} ${value === 1 ? one : (many ?? one + 's')}`
}

/** Return a duration in its two largest units. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return ''
  const value = Math.max(0, seconds)
  if (value < 1) return `${Math.round(value * 1000)} ms`
  if (value < 10) return `${value.toFixed(1)} s`
  if (value < 60) return `${Math.round(value)} s`
  if (value < 3600) return two(value, 60, 'min', 's')
  if (value < 86400) return two(value, 3600, 'h', 'min', 60)
  return two(value, 86400, 'd', 'h', 3600)
}

function two(value: number, large: number, name: string, lower: string, small = 1): string {
  const whole = Math.floor(value / large)
  const rest = Math.floor((value % large) / small)
  return rest && whole < 100 ? `${whole} ${name} ${rest} ${lower}` : `${whole} ${name}`
}

export function between(start: string | null | undefined, end: string | null | undefined, now?: number): string {
  if (!start) return ''
  const until = end ? Date.parse(end) : (now ?? serviceNow())
  return duration((until - Date.parse(start)) / 1000)
}

/** Return how long ago an instant was, or how soon it will be. */
export function ago(instant: string | number | null | undefined, now: number): string {
  if (instant === null || instant === undefined) return ''
  const at = typeof instant === 'number' ? instant : Date.parse(instant)
  const seconds = (now - at) / 1000
  if (Math.abs(seconds) < 1.5) return 'now'
  return seconds > 0 ? `${coarse(seconds)} ago` : `in ${coarse(-seconds)}`
}

function coarse(seconds: number): string {
  // Use the next unit as soon as the rounded number would reach it: 59.5 s is `1 min`.
  if (seconds < 59.5) return `${Math.round(seconds)} s`
  if (seconds < 59.5 * 60) return `${Math.round(seconds / 60)} min`
  if (seconds < 23.5 * 3600) return `${Math.round(seconds / 3600)} h`
  return `${Math.round(seconds / 86400)} d`
}

const twoDigits = (value: number) => String(value).padStart(2, '0')

/** Return the instant in UTC, as the commands print it: 2026-11-28 09:15:02. */
export function instant(value: string | null | undefined): string {
  if (!value) return ''
  const at = new Date(value)
  if (Number.isNaN(at.getTime())) return value
  const day = `${at.getUTCFullYear()}-${twoDigits(at.getUTCMonth() + 1)}-${twoDigits(at.getUTCDate())}`
  return `${day} ${clockTime(at)}`
}

/** Return the time of day, with the date unless it is today. */
export function shortInstant(value: string | null | undefined, now: number): string {
  if (!value) return ''
  const whole = instant(value)
  return whole.slice(0, 10) === new Date(now).toISOString().slice(0, 10) ? whole.slice(11) : whole.slice(5, 16)
}

function clockTime(at: Date): string {
  return [at.getUTCHours(), at.getUTCMinutes(), at.getUTCSeconds()].map(twoDigits).join(':')
}

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return ''
  if (value < 1024) return `${value} B`
  const units = ['KiB', 'MiB', 'GiB', 'TiB']
  let rest = value
  let unit = -1
  do {
    rest /= 1024
    unit += 1
  } while (rest >= 1024 && unit < units.length - 1)
  return `${rest < 10 ? rest.toFixed(1) : Math.round(rest)} ${units[unit]}`
}

/** Return the first line of a text, cut to a length. For a traceback, return the line with the error that was raised. */
export function oneLine(text: string | null | undefined, most = 200): string {
  if (!text) return ''
  const lines = text.trim().split('\n')
  const trace = lines.findIndex((one) => one.includes('Traceback (most recent call last):'))
  let line = lines[0] ?? ''
  if (trace >= 0) {
    const raised = lines.slice(trace + 1).findLast((one) => /^[\w.]+(:|$)/.test(one)) ?? lines.at(-1) ?? ''
    line = (lines[trace] ?? '').split('Traceback (')[0] + raised
  }
  return line.length > most ? line.slice(0, most - 1) + '…' : line
}

/** Return a text as a shell argument, in quotes if the shell would otherwise change it. */
export function shell(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`
}

export function json(value: unknown): string {
  return JSON.stringify(value, null, 2) ?? ''
}
