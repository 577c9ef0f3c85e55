// Data that stays fresh: read once, again on a hint of /changes, and at least every few seconds while it is visible.

import { untrack } from 'svelte'

import { address, connection, get, probe, Problem } from './api.svelte'
import { serviceNow } from './time'

export const clock = $state({ now: serviceNow() })

type Listener = { topics: string[]; wake: () => void }
const listeners = new Set<Listener>()
let source: EventSource | null = null

/** Keep one stream of hints open while the tab is visible, and advance the clock. Return a function that stops both. */
export function startLive(): () => void {
  const tick = setInterval(() => {
    if (!document.hidden) clock.now = serviceNow()
  }, 1000)
  const turn = () => {
    if (document.hidden || connection.needsLogin) close()
    else {
      open()
      clock.now = serviceNow()
      for (const one of listeners) one.wake()
    }
  }
  document.addEventListener('visibilitychange', turn)
  // A browser has six connections for each origin. A page that the user has left must not keep one of them.
  window.addEventListener('pagehide', close)
  open()
  return () => {
    clearInterval(tick)
    document.removeEventListener('visibilitychange', turn)
    window.removeEventListener('pagehide', close)
    close()
  }
}

function open() {
  if (source || document.hidden || connection.needsLogin) return
  source = new EventSource(address('/changes'))
  source.onmessage = hear
  source.addEventListener('changes', hear)
  source.onerror = () => {
    // The stream may have ended in order, or the service may be gone. Ask, so that the page shows an outage at once.
    void probe()
    // The browser connects again on its own, unless the service refused the request.
    if (source?.readyState === EventSource.CLOSED) {
      close()
      setTimeout(open, 5000)
    }
  }
}

function close() {
  source?.close()
  source = null
}

export function reopen() {
  close()
  open()
}

function hear(event: MessageEvent<string>) {
  let topics: string[]
  try {
    topics = Object.keys(JSON.parse(event.data))
  } catch {
    return
  }
  for (const one of listeners) if (one.topics.some((topic) => topics.includes(topic))) one.wake()
}

export class Live<T> {
  data = $state.raw<T>()
  problem = $state.raw<Problem | null>(null)
  /** When the shown data was read, in milliseconds by the service's clock. */
  at = $state<number | null>(null)
  busy = $state(false)
  /** The address to read. */
  url = $state('')
  /** The address from which the shown data was read. */
  from = $state('')
  private abort: AbortController | null = null
  private startedAt = 0
  private timer: ReturnType<typeof setTimeout> | undefined

  read = async (): Promise<void> => {
    if (!this.url || document.hidden || connection.needsLogin) return
    this.abort?.abort()
    const abort = (this.abort = new AbortController())
    this.busy = true
    this.startedAt = performance.now()
    const url = this.url
    try {
      const data = await get<T>(url, abort.signal)
      if (abort.signal.aborted) return
      this.from = url
      this.data = data
      this.problem = null
      this.at = clock.now = serviceNow()
    } catch (error) {
      if (abort.signal.aborted) return
      this.problem = error instanceof Problem ? error : new Problem(0, 'Unreadable', String(error))
    }
    this.busy = false
  }

  /** Read again, but not more than once a second, and not while a request is under way. */
  wake = () => {
    if (this.timer !== undefined) return
    const wait = Math.max(this.busy ? 500 : 0, this.startedAt + 1000 - performance.now())
    this.timer = setTimeout(() => {
      this.timer = undefined
      if (this.busy) this.wake()
      else void this.read()
    }, wait)
  }

  forget() {
    this.abort?.abort()
    clearTimeout(this.timer)
    this.timer = undefined
  }
}

type Options = {
  /** The topics of hints that cause a new read. */
  topics?: string[]
  /** Seconds between two reads without a hint; 0: never. */
  every?: number
}

/** Read the address that `url` returns, again and again while the calling component is on screen. Null: read nothing. */
export function live<T>(url: () => string | null, { topics = [], every = 5 }: Options = {}): Live<T> {
  const one = new Live<T>()
  const listener = { topics, wake: one.wake }
  $effect(() => {
    const wanted = url()
    void connection.comeback
    void connection.needsLogin
    untrack(() => {
      if (wanted === null) {
        one.forget()
        one.url = ''
        one.data = undefined
        return
      }
      one.url = wanted
      void one.read()
    })
  })
  $effect(() => {
    listeners.add(listener)
    const timer = every
      ? setInterval(() => {
          if (connection.awaySince === null) one.wake()
        }, every * 1000)
      : undefined
    return () => {
      listeners.delete(listener)
      clearInterval(timer)
      one.forget()
    }
  })
  return one
}
