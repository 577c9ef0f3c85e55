// Lists the problems in the answers of /overview and /streams, the worst first.

import { count, duration, oneLine } from './format'
import { link, path } from './router.svelte'
import { isOutdated, streamState } from './streams'
import type { Run, Stream, Watcher } from './types'

export type Overview = {
  at: string
  broken_files: { path: string; errors: { file: string; line: number | null; reason: string }[] }[]
  watchers: Watcher[]
  watcher_states: Record<string, number>
  parked: { asset_name: string; watcher: string; count: number; first_at: string; last_at: string; error: string | null }[]
  failed_runs: Run[]
  failed_run_count: { value: number; is_counted_short: boolean }
  waiting_runs: Run[]
  missing_instances: string[]
  cleaning_error: string | null
  cleaning_failed_at: string | null
  run_states: Record<string, number>
  dags: number
  paused_dags: number
  assets: number
  streams: number
  last_event_at: string | null
}

export type Problem = {
  key: string
  rank: number
  kind: string
  state: string
  title: string
  detail: string
  since: string | null
  href: string
  action: string
  /** What the row shows when it is opened. */
  more?: string
  /** A failed run, which the button repeats. */
  retry?: { dag: string; run: string }
}

/** A problem of a lower rank needs a person. A problem of this rank or a higher one may end on its own. */
const WAITS = 7

/** The reasons of pauses that last until a person acts. Other pauses end when watchers take messages. */
const HOLDS = ['parked_bound', 'standing']

/** `readAt`: when the page read the streams, in milliseconds. */
export function problemsOf(overview: Overview, streams: Stream[], readAt: number | null): Problem[] {
  const found: Problem[] = []
  const add = (rank: number, problem: Omit<Problem, 'rank'>) => found.push({ rank, ...problem })
  for (const id of overview.missing_instances)
    add(1, {
      key: `instance ${id}`, kind: 'Instance gone', state: 'missing', title: `${id} sends no heartbeat`, detail: 'Others take over its streams and runs when its lease is over.',
      since: null, href: link('/settings', { tab: 'instances' }), action: 'See the instances',
    })
  for (const file of overview.broken_files) {
    const first = file.errors[0]
    add(2, {
      key: `file ${file.path}`, kind: 'Broken file', state: 'broken', title: `${file.path}${first?.line ? ':' + first.line : ''} does not load`,
      detail: oneLine(first?.reason ?? '', 300), since: null, href: link('/dags'), action: 'See the DAGs',
      more: file.errors.map((one) => `${one.file}${one.line ? ':' + one.line : ''}: ${one.reason}`).join('\n'),
    })
  }
  for (const one of overview.watchers) {
    const isFailing = one.state === 'failing'
    const name = `${one.asset_name}/${one.name}`
    add(isFailing ? 3 : WAITS, {
      key: `watcher ${name}`, kind: isFailing ? 'Failing watcher' : one.state === 'catching_up' ? 'Watcher behind' : 'Watcher waits', state: one.state, title: name,
      detail: oneLine(one.error ?? one.reason, 300) || (one.behind ? `${count(one.behind, 'message')} behind` : one.owner ? '' : 'No instance hosts it.'),
      since: one.behind_since ?? (isFailing ? (one.updated_at ?? null) : null), more: one.traceback ?? undefined, href: link('/assets', { name: one.asset_name }), action: 'Open the watcher',
    })
  }
  for (const one of streams)
    if (one.owner && one.paused_reasons?.some((reason) => HOLDS.includes(reason)))
      add(4, {
        key: `held ${one.id}`, kind: 'Stream held', state: 'held', title: one.stream, detail: oneLine(one.paused, 300),
        since: null, href: link(path('streams', one.id)), action: 'Open the stream',
      })
    else if (isOutdated(one, readAt))
      add(WAITS, {
        key: `unknown ${one.id}`, kind: 'Stream unknown', state: 'unknown', title: one.stream, detail: `Its owner ${one.owner} has stopped reporting, so its lag is not known.`,
        since: one.reported_at, href: link(path('streams', one.id)), action: 'Open the stream',
      })
    else if (streamState(one, readAt).kind === 'behind')
      add(4, {
        key: `stream ${one.id}`, kind: 'Stream behind', state: 'behind', title: one.stream, detail: `${duration(one.lag_seconds)} behind, ${count(one.lag, 'message')}`,
        since: null, href: link(path('streams', one.id)), action: 'Open the stream',
      })
  for (const one of overview.parked) {
    const name = `${one.asset_name}/${one.watcher}`
    add(5, {
      key: `parked ${name}`, kind: 'Parked', state: 'parked', title: `${count(one.count, 'message')} parked for ${name}`, detail: oneLine(one.error, 300), since: one.first_at,
      href: link('/parked', { asset: one.asset_name, watcher: one.watcher }), action: 'Replay or discard',
    })
  }
  if (overview.cleaning_error)
    add(5, {
      key: 'cleaning', kind: 'Cleaning failed', state: 'failed', title: 'Old data was not deleted', detail: oneLine(overview.cleaning_error, 300),
      since: overview.cleaning_failed_at, href: link('/settings'), action: 'See [retention]', more: overview.cleaning_error,
    })
  for (const run of overview.failed_runs)
    add(6, {
      key: `run ${run.dag_id}\n${run.run_id}`, kind: 'Failed run', state: 'failed', title: `${run.dag_id} ${run.run_id}`, detail: oneLine(run.error, 300), since: run.ended_at, more: run.error ?? undefined,
      href: link(path('dags', run.dag_id, 'runs', run.run_id)), action: 'Open the run', retry: { dag: run.dag_id, run: run.run_id },
    })
  for (const run of overview.waiting_runs)
    add(WAITS + 1, {
      key: `waits ${run.dag_id}\n${run.run_id}`, kind: 'Run waits', state: 'queued', title: `${run.dag_id} ${run.run_id}`, detail: run.waiting_for ?? 'It is queued.',
      since: run.waiting_since ?? run.queued_at, href: link(path('dags', run.dag_id, 'runs', run.run_id)), action: 'Open the run',
    })
  // The oldest problem of a rank comes first. But of the failed runs, the newest comes first.
  const age = (one: Problem) => (one.since ?? '').localeCompare('') && Date.parse(one.since!) * (one.retry ? -1 : 1)
  return found.sort((a, b) => a.rank - b.rank || age(a) - age(b))
}

/** Return the number of problems that need a person, also of problems that the lists leave out. */
function urgentOf(problems: Problem[], overview: Overview): { number: number; isMore: boolean } {
  const failing = overview.watcher_states['failing'] ?? 0
  const runs = overview.failed_run_count
  const listed = problems.filter((one) => one.rank < WAITS)
  const others = listed.filter((one) => one.kind !== 'Failing watcher' && one.kind !== 'Failed run').length
  const isFull = overview.broken_files.length >= 20 || overview.parked.length >= 20
  return { number: others + Math.max(failing, listed.filter((one) => one.kind === 'Failing watcher').length) + runs.value, isMore: runs.is_counted_short || isFull }
}

/** Return how many of all streams keep up, in words. `known`: the first streams, as the page read them at `readAt`. */
function streamsInWords(all: number, known: Stream[], readAt: number | null): string {
  if (!all) return ''
  const kinds = known.map((one) => streamState(one, readAt).kind)
  const number = (kind: string) => kinds.filter((one) => one === kind).length
  const [good, running, unknown] = [number('good'), number('running'), number('unknown')]
  if (unknown === known.length) return `nothing is known about ${count(all, 'stream')}`
  const are = (some: number, one: string, many: string) => `${count(some)} ${some === 1 ? one : many}`
  const whole = all > known.length ? `the first ${count(known.length)} streams` : count(known.length, 'stream')
  const rest = unknown ? `, nothing is known about ${count(unknown)}` : ''
  if (good === known.length && all === good) return are(all, 'stream keeps up', 'streams keep up')
  if (running === known.length && all === running) return are(all, 'stream runs', 'streams run')
  if (!good && !running) return (all === 1 ? 'the stream does not keep up' : `none of ${whole} keeps up`) + rest
  if (!good) return `${count(running)} of ${whole} ${running === 1 ? 'runs' : 'run'}, without a known lag${rest}`
  return `${count(good)} of ${whole} ${good === 1 ? 'keeps up' : 'keep up'}${running ? `, ${are(running, 'runs', 'run')} without a known lag` : ''}${rest}`
}

/** Answer "is anything wrong?" in one sentence. */
export function verdict(problems: Problem[], overview: Overview, known: Stream[], readAt: number | null): string {
  const streams = streamsInWords(overview.streams, known, readAt)
  const { number, isMore } = urgentOf(problems, overview)
  if (number) return `${count(number)}${isMore ? '+' : ''} ${number === 1 ? 'thing needs' : 'things need'} you${streams ? `; ${streams}` : ''}.`
  const running = overview.run_states['running'] ?? 0
  const work = running ? ` ${count(running, 'run')} ${running === 1 ? 'is' : 'are'} at work.` : ''
  if (problems.length) return `Nothing failed, but ${count(problems.length)} ${problems.length === 1 ? 'thing waits' : 'things wait'}${streams ? `; ${streams}` : ''}.${work}`
  return `Nothing is wrong. ${streams ? streams + '.' : `${count(overview.dags, 'DAG')} and no stream.`}${work}`
}
