// Keys that work everywhere, except while somebody types.

import { go, link } from './router.svelte'

export const help = $state({ isOpen: false })

const places: Record<string, string> = {
  h: '/', s: '/streams', a: '/assets', d: '/dags', r: '/runs', t: '/trace', p: '/parked', e: '/settings',
}

export const keys: [string, string][] = [
  ['/', 'find a DAG, an asset, an event'],
  ['g then h, s, a, d, r, t, p, e', 'home, streams, assets, DAGs, runs, trace, parked, settings'],
  ['j and k', 'next and previous row'],
  ['Enter', 'open the row'],
  ['x', 'choose the row (parked messages)'],
  ['?', 'show this list'],
  ['Esc', 'close what is open'],
]

let isGoing = false

export function onkeydown(event: KeyboardEvent) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return
  const target = event.target as HTMLElement
  if (target.closest('dialog[open]')) return
  if (/^(TEXTAREA|SELECT)$/.test(target.tagName) || (target instanceof HTMLInputElement && target.type !== 'checkbox')) {
    if (event.key === 'Escape') target.blur()
    return
  }
  if (isGoing) {
    isGoing = false
    const place = places[event.key]
    if (place) {
      event.preventDefault()
      go(link(place))
    }
    return
  }
  switch (event.key) {
    case 'g':
      isGoing = true
      setTimeout(() => (isGoing = false), 1200)
      break
    case '/':
      document.getElementById('search')?.focus()
      event.preventDefault()
      break
    case '?':
      help.isOpen = true
      break
    case 'j':
    case 'k':
      move(event.key === 'j' ? 1 : -1)
      event.preventDefault()
      break
    case 'x':
      document.activeElement?.closest('[data-row]')?.querySelector<HTMLInputElement>('input[type=checkbox]')?.click()
      break
  }
}

function move(step: number) {
  const rows = [...document.querySelectorAll<HTMLElement>('main [data-row]')]
  if (rows.length === 0) return
  const current = document.activeElement?.closest<HTMLElement>('[data-row]')
  const index = current ? rows.indexOf(current) + step : step > 0 ? 0 : rows.length - 1
  const row = rows[Math.min(rows.length - 1, Math.max(0, index))]!
  const first = row.querySelector<HTMLElement>('a, button') ?? row
  first.focus()
  row.scrollIntoView({ block: 'nearest' })
}
