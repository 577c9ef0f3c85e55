// The fields of the API's answers that the page reads.

export type Page<T> = { items: T[]; next_cursor: string | null; count?: { value: number; is_counted_short: boolean } | null }

export type AssetEvent = {
  id: number
  asset_name: string
  asset_uri: string
  extra: Record<string, unknown> | null
  timestamp: string
  source_watcher: string | null
  source_dag_id: string | null
  source_run_id: string | null
  source_task_id: string | null
  idempotency_key: string | null
  partition_key: string | null
}

export type Asset = {
  id: number
  name: string
  uri: string
  group: string
  extra: Record<string, unknown>
  declared_in: string | null
  last_event_timestamp: string | null
  /** The number of the asset's watchers in each state. */
  watchers?: Record<string, number>
}

export type Watcher = {
  asset_name: string
  name: string
  trigger: string
  stream: string
  stream_id: string
  state: string
  error: string | null
  owner: string | null
  kwargs?: Record<string, unknown>
  path?: string
  updated_at?: string
  behind: number | null
  behind_since: string | null
  traceback: string | null
  set_aside: number
  reason?: string | null
  positions?: { lane: string; position: unknown; behind: number | null; since: string }[]
}

export type Task = { task_id: string; outlets?: string[]; inlets?: string[]; upstream?: string[] } & Record<string, unknown>

export type Dag = {
  dag_id: string
  path: string
  description: string | null
  tags: string[]
  schedule: Record<string, unknown> | null
  max_active_runs: number
  events_per_run: number | null
  params: Record<string, unknown>
  tasks: Task[]
  is_paused: boolean
  is_stale: boolean
  file_missing_since: string | null
  queued_events: number
  is_counted_short?: boolean
  last_run_id: string | null
  last_run_state: string | null
  next_run_after?: string | null
  file_error?: string | null
  file_warnings?: { file: string; line: number | null; reason: string }[]
}

export type Run = {
  dag_id: string
  run_id: string
  run_type: string
  state: string
  logical_date: string | null
  data_interval_start: string | null
  data_interval_end: string | null
  run_after: string
  queued_at: string
  started_at: string | null
  ended_at: string | null
  error: string | null
  params?: Record<string, unknown>
  exit_code?: number | null
  attempt?: number
  executor?: string | null
  log_path?: string | null
  partition_key?: string | null
  waiting_for?: string | null
  waiting_since?: string | null
  asset_event_ids?: number[]
}

export type Attempt = {
  number: number
  epoch: number
  state: string
  executor: string
  tag: string
  reason: string | null
  claimed_at: string
  started_at: string | null
  ended_at: string | null
  launches: { tag: string; launcher: string; task_id: string | null; place: string | null; external_id: string | null; link: string | null; state: string; reason: string | null }[]
}

/** The progress of work on Spark, as Spark counts it. */
export type Progress = {
  stages: number
  stages_done: number
  tasks: number
  tasks_done: number
  tasks_failed: number
  rows_read: number | null
  rows_written: number | null
  bytes_read: number | null
}

export type Stage = Omit<Progress, 'stages' | 'stages_done'> & { stage_id: number; name: string; started_at: string; ended_at: string | null }

export type TaskRun = {
  task_id: string
  state: string
  try_number: number
  started_at: string | null
  ended_at: string | null
  error: string | null
  progress?: { total: Progress; newest_stages: Stage[] } | null
}

export type Expression =
  | { all: Expression[]; satisfied: boolean }
  | { any: Expression[]; satisfied: boolean }
  | { asset: string; satisfied: boolean }
  | { alias: string; satisfied: boolean }

export type Why = {
  run?: Run
  run_type?: string
  expression: Expression | null
  events: AssetEvent[]
  streams: Record<string, string>
}

export type Hold = { kind: string; reason: string; until: string | null }

export type WhyNot = {
  dag_id: string
  runs_due: number
  holds: Hold[]
  next_run: { run_after: string; data_interval_start: string; data_interval_end: string; partition_key: string | null } | null
  waiting: { asset_name: string; asset_uri: string; queued: number }[]
  partitions: { partition_key: string; due_at: string | null; runs: number; lacks: { name: string; missing: string[]; unreachable: string | null }[] }[]
  watchers: { asset_name: string; name: string; state: string; error: string | null; reason?: string | null }[]
}

export type Parked = {
  id: number
  asset_name: string
  watcher: string
  lane: string
  idempotency_key: string
  state: string
  failures: number
  error: string | null
  parked_at: string
}

export type ParkedMessage = Parked & { traceback: string | null; size_bytes: number; message: string | null }

export type Lane = {
  lane: string
  lag: number | null
  lag_seconds: number | null
  outstanding: number
  paused: string | null
  behind?: number | null
}

/** The last hour of a stream, minute by minute. The last minute is not over. */
export type History = { since: string; lag: (number | null)[]; consumed: (number | null)[] }

export type Stream = {
  id: string
  stream: string
  owner: string | null
  epoch: number
  lease_ends_at: string | null
  watchers: Record<string, number>
  reported_at: string | null
  lag: number | null
  lag_seconds: number | null
  outstanding: number | null
  /** The number of messages since the owner claimed the stream. */
  consumed: number | null
  advanced: number | null
  behind: number | null
  paused: string | null
  paused_reasons?: string[]
  lanes: Lane[]
  lane_count: number | null
  history?: History | null
}

export type QueuedEvent = {
  dag_id: string
  asset_name: string
  asset_uri: string
  asset_event_id: number
  queued_at: string
  partition_key: string | null
}

export type Backfill = {
  id: number
  dag_id: string
  state: string
  from_date: string | null
  to_date: string | null
  reprocess: string
  max_active: number
  created_at: string
  intervals: Record<string, number>
  partition_keys: Record<string, number>
  runs: Record<string, number>
}

export type Instance = {
  id: string
  kind: string
  state: string
  host: string
  pid: number | null
  release: string
  started_at: string
  heartbeat_at: string | null
  lease_ends_at?: string | null
}
