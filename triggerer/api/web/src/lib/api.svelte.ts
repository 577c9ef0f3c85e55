// Requests to the service that served this page, and what is known about the connection to it.

import { asSearch, prefix, type Query } from './router.svelte'
import { hearDate, serviceNow } from './time'

export const ROOT = prefix + '/api/v1'

/** An error as RFC 9457 describes it. Status 0: there was no answer. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly title: string,
    readonly detail: string,
    readonly hint: string | null = null,
    readonly page: string | null = null,
  ) {
    super(detail || title)
  }
}

export const connection = $state({
  /** When the service stopped answering, in milliseconds; null: it answers. */
  awaySince: null as number | null,
  needsLogin: false,
  /** Grows when the service answers again. Then everything on screen is read again. */
  comeback: 0,
})

export function address(path: string, query: Query = {}): string {
  const search = asSearch(query)
  return ROOT + path + (search ? '?' + search : '')
}

export async function get<T>(url: string, signal?: AbortSignal): Promise<T> {
  const answer = await ask(url, { signal, headers: { accept: 'application/json' } })
  return (await answer.json()) as T
}

/** Send a change. The key makes a repeat of the request harmless. */
export async function send<T>(method: string, url: string, body?: unknown): Promise<T> {
  const headers: Record<string, string> = { accept: 'application/json', 'content-type': 'application/json' }
  if (method === 'POST') headers['idempotency-key'] = randomKey()
  const token = cookie('csrftoken')
  if (token) headers['x-csrftoken'] = token
  const answer = await ask(url, { method, headers, body: body === undefined ? '{}' : JSON.stringify(body) })
  const text = await answer.text()
  return (text ? JSON.parse(text) : undefined) as T
}

export async function ask(url: string, init: RequestInit): Promise<Response> {
  let answer: Response
  try {
    answer = await fetch(url, { ...init, credentials: 'same-origin', cache: init.method ? 'no-store' : 'no-cache' })
  } catch (error) {
    if ((error as Error).name === 'AbortError') throw error
    connection.awaySince ??= serviceNow()
    throw new Problem(0, 'No answer', 'the service does not answer')
  }
  hearDate(answer)
  if ([502, 503, 504].includes(answer.status) && !answer.headers.get('content-type')?.includes('problem'))
    connection.awaySince ??= serviceNow()
  else isBack()
  if (answer.status === 401) connection.needsLogin = true
  if (!answer.ok) throw await problemOf(answer)
  return answer
}

function isBack() {
  if (connection.awaySince === null) return
  connection.awaySince = null
  connection.comeback += 1
}

async function problemOf(answer: Response): Promise<Problem> {
  const title = answer.statusText || `Status ${answer.status}`
  try {
    const body = await answer.json()
    return new Problem(answer.status, body.title ?? title, body.detail ?? '', body.hint ?? null, body.type ?? null)
  } catch {
    return new Problem(answer.status, title, '')
  }
}

function randomKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16))
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('')
}

function cookie(name: string): string | null {
  for (const part of document.cookie.split('; '))
    if (part.startsWith(name + '=')) return decodeURIComponent(part.slice(name.length + 1))
  return null
}

/** Find out whether the service answers. */
export async function probe() {
  if (document.hidden) return
  await ask(prefix + '/livez', {}).catch(() => undefined)
}

/** Ask every two seconds while the service is away, until it answers. */
export function watchForReturn(): () => void {
  const timer = setInterval(() => {
    if (connection.awaySince !== null) void probe()
  }, 2000)
  return () => clearInterval(timer)
}
