// Keeps a list still while somebody reads it: new rows are counted, and shown when the reader asks for them.

import { untrack } from 'svelte'

export class Held<T> {
  rows = $state.raw<T[]>([])
  /** How many rows are new and not shown. */
  fresh = $state(0)
  gone = $state.raw<Set<string>>(new Set())
  private latest: T[] = []
  private scope: unknown = undefined

  constructor(private key: (row: T) => string) {}

  /**
   * Take the rows that were just read. Rows on screen keep their places, and new rows wait.
   *
   * All rows are shown at once if `scope` has changed, so that this is another list, if `isOpen`, or if no row is shown.
   */
  take(rows: T[], scope: unknown, isOpen: boolean) {
    this.latest = rows
    if (scope !== this.scope || isOpen || this.rows.length === 0) {
      this.scope = scope
      this.show()
      return
    }
    const byKey = new Map(rows.map((row) => [this.key(row), row]))
    const shown = this.rows.map((row) => byKey.get(this.key(row)) ?? row)
    const known = new Set(shown.map(this.key))
    this.fresh = rows.filter((row) => !known.has(this.key(row))).length
    // New rows may push old rows off the end of the page. Those still exist, so only a row that is missing before the
    // last known row is gone.
    const last = shown.findLastIndex((row) => byKey.has(this.key(row)))
    const missing = shown.filter((row, index) => !byKey.has(this.key(row)) && (this.fresh === 0 || index < last))
    this.gone = new Set(missing.map(this.key))
    this.rows = shown
  }

  show = () => {
    this.rows = this.latest
    this.fresh = 0
    this.gone = new Set()
  }
}

/** Hold the rows that `read` returns. `scope` returns the filters: when they change, the new list is shown at once. */
export function held<T>(read: () => T[] | undefined, key: (row: T) => string, scope: () => unknown): Held<T> {
  const one = new Held<T>(key)
  $effect.pre(() => {
    const rows = read()
    const wanted = scope()
    if (rows) untrack(() => one.take(rows, wanted, false))
  })
  return one
}
