// The address is the only state that survives a reload: a path, and a query for filters, tabs and cursors.

const prefix = (document.querySelector('base')?.getAttribute('href') ?? '/').replace(/\/$/, '')

function read() {
  const { pathname, search, hash } = window.location
  const path = pathname.startsWith(prefix) ? pathname.slice(prefix.length) : pathname
  return { path: path || '/', query: new URLSearchParams(search), hash }
}

export const here = $state(read())

function follow() {
  Object.assign(here, read())
}

window.addEventListener('popstate', follow)

/** Return the address of a screen; parameters without a value are left out. */
export function link(path: string, query: Query = {}): string {
  const search = asSearch(query)
  return prefix + path + (search ? '?' + search : '')
}

export type Query = Record<string, string | number | boolean | null | undefined>

export function asSearch(query: Query): string {
  const search = new URLSearchParams()
  for (const [name, value] of Object.entries(query))
    if (value !== null && value !== undefined && value !== '' && value !== false) search.set(name, String(value))
  return search.toString()
}

/** Return the path of a screen for names that users chose. */
export function path(...parts: string[]): string {
  return '/' + parts.map(encodeURIComponent).join('/')
}

export function go(address: string, { replace = false } = {}) {
  window.history[replace ? 'replaceState' : 'pushState'](null, '', address)
  const before = here.path
  follow()
  if (here.path !== before) window.scrollTo(0, 0)
}

/** Change parts of the query; null removes one. */
export function setQuery(changes: Query, { replace = true } = {}) {
  const query = new URLSearchParams(here.query)
  for (const [name, value] of Object.entries(changes))
    if (value === null || value === undefined || value === '' || value === false) query.delete(name)
    else query.set(name, String(value))
  const search = query.toString()
  go(prefix + here.path + (search ? '?' + search : ''), { replace })
}

/** Show the screen of a clicked link. The browser handles other links, and clicks with a modifier key. */
export function onclick(event: MouseEvent) {
  if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return
  const anchor = (event.target as Element | null)?.closest('a')
  if (!anchor || anchor.target || anchor.hasAttribute('download') || anchor.hasAttribute('data-raw')) return
  if (anchor.origin !== window.location.origin || anchor.getAttribute('href')?.startsWith('#')) return
  event.preventDefault()
  if (anchor.href !== window.location.href) go(anchor.href)
}

/** Return the parts of the path, decoded; a part that is no valid encoding stays as it is. */
export function parts(): string[] {
  return here.path
    .split('/')
    .filter(Boolean)
    .map((part) => {
      try {
        return decodeURIComponent(part)
      } catch {
        return part
      }
    })
}

export { prefix }
