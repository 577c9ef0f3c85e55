-- Fills an empty store. The temporary table n has the numbers from 0 to 999,999 as n, and the functions are those of
-- ailing_store.py: ago(seconds), dag(n), asset(n), asset_json(name, uri).

INSERT INTO stream (digest, key, owner, epoch, expires_at)
SELECT printf('%064x', n + 1), 'kafka topic-' || n, 'node-1:41:a', 3, ago(-86400) FROM n WHERE n < 40;

INSERT INTO asset (id, name, uri, "group", extra, declared_in, created_at)
SELECT n + 1, asset(n), 'kafka://broker/' || asset(n), 'asset', '{}', 'dags_' || (n % 100) || '.py', ago(9000000)
FROM n WHERE n < 10000;

INSERT INTO asset (id, name, uri, "group", extra, declared_in, created_at)
SELECT 10001 + n, 'result_of_' || dag(n), 'file:///srv/results/' || n, 'asset', '{}', 'dags_' || (n % 100) || '.py',
  ago(9000000)
FROM n WHERE n < 2000;

INSERT INTO trigger (id, digest, classpath, kwargs, stream_digest)
SELECT n + 1, printf('%064x', n + 1), 'triggerer_kafka.KafkaEventTrigger',
  json_object('topics', json_array('topic-' || (n % 40)), 'number', n), printf('%064x', n % 40 + 1)
FROM n WHERE n < 10000;

INSERT INTO watcher (id, asset_id, name, trigger_id, path, state, error, owner, updated_at)
SELECT n + 1, n + 1, 'main', n + 1, 'dags_' || (n % 100) || '.py',
  CASE n % 20 WHEN 3 THEN 'failing' WHEN 7 THEN 'catching_up' WHEN 11 THEN 'waiting' ELSE 'running' END,
  CASE WHEN n % 20 = 3 THEN 'BrokerUnavailable: the broker at broker-7.example:9092 does not answer' END,
  'node-1:41:a', ago(n)
FROM n WHERE n < 10000;

INSERT INTO watcher_position (watcher_id, lane, stream_digest, position, since, head)
SELECT n + 1, json_array('topic-0', n % 8), printf('%064x', n % 40 + 1), json_array('1', n * 5), ago(n / 2), n * 6 + 300
FROM n WHERE n < 10000 AND n % 20 = 7;

INSERT INTO dag (dag_id, path, description, tags, schedule, max_active_runs, params, tasks, is_paused, is_stale,
  updated_at, last_run_at)
SELECT dag(n), 'dags_' || (n % 100) || '.py', 'Joins the day''s files.', json_array('team-' || (n % 9)),
  json_object('all', json_array(
    json(asset_json(asset(5 * n), 'kafka://broker/' || asset(5 * n))),
    json(asset_json(asset(5 * n + 1), 'kafka://broker/' || asset(5 * n + 1))))),
  16, '{}',
  json_array(
    json('{"task_id": "extract", "upstream": [], "outlets": [], "inlets": [], "needs_spark": false}'),
    json('{"task_id": "clean", "upstream": ["extract"], "outlets": [], "inlets": [], "needs_spark": false}'),
    json('{"task_id": "join_customers", "upstream": ["extract"], "outlets": [], "inlets": [], "needs_spark": false}'),
    json_object('task_id', 'publish', 'upstream', json_array('clean', 'join_customers'), 'outlets',
      json_array(json(asset_json('result_of_' || dag(n), 'file:///srv/results/' || n))),
      'inlets', json_array(), 'needs_spark', json('false'))),
  n % 11 = 10, 0, ago(n), ago(n)
FROM n WHERE n < 2000;

INSERT INTO dag_schedule_asset (dag_id, asset_id) SELECT dag(n), 5 * n + 1 FROM n WHERE n < 2000;
INSERT INTO dag_schedule_asset (dag_id, asset_id) SELECT dag(n), 5 * n + 2 FROM n WHERE n < 2000;

INSERT INTO dag_file (path, parsed_at, parse_seconds, errors, warnings, is_broken)
SELECT 'dags_' || n || '.py', ago(n), 0.2,
  CASE WHEN n BETWEEN 97 AND 99 THEN json_array(json_object(
    'file', 'dags_' || n || '.py', 'line', 12, 'reason', 'SyntaxError: invalid syntax')) ELSE '[]' END,
  '[]', n BETWEEN 97 AND 99
FROM n WHERE n < 100;

-- Forty runs of each DAG, and then 20,000 of the first one. The last twelve have not ended.
INSERT INTO dag_run (id, dag_id, run_id, run_type, state, run_after, params, queued_at, started_at, ended_at, error,
  log_home, executor, attempt, epoch, cancel_requested)
SELECT n + 1, dag(CASE WHEN n < 80000 THEN n % 2000 ELSE 0 END), 'asset_triggered__' || n, 'asset_triggered',
  CASE WHEN n >= 99996 THEN 'queued' WHEN n >= 99988 THEN 'running' WHEN n % 13 = 5 THEN 'failed'
    WHEN n % 29 = 7 THEN 'cancelled' ELSE 'success' END,
  ago((100000 - n) * 60), '{}', ago((100000 - n) * 60),
  CASE WHEN n < 99996 THEN ago((100000 - n) * 60 - 2) END,
  CASE WHEN n < 99988 THEN ago((100000 - n) * 60 - 7 - n % 47) END,
  CASE WHEN n % 13 = 5 AND n < 99988 THEN 'task publish failed: ValueError: the report has no rows' END,
  '/nowhere', 'node-2:42:b', 1, 1, 0
FROM n WHERE n < 100000;

INSERT INTO task_run (run_pk, task_id, state, try_number, started_at, ended_at)
SELECT n + 1, task, CASE WHEN n % 13 = 5 AND task = 'publish' THEN 'failed' ELSE 'success' END, 1,
  ago((100000 - n) * 60 - 2 - place), ago((100000 - n) * 60 - 3 - place - n % 40)
FROM n, (SELECT 'extract' AS task, 0 AS place UNION SELECT 'clean', 1 UNION SELECT 'join_customers', 2
  UNION SELECT 'publish', 3)
WHERE n < 99988;

INSERT INTO run_attempt (run_pk, epoch, number, executor, launcher, tag, state, intent_at, launched_at, ended_at)
SELECT n + 1, 1, 1, 'node-2:42:b', 'worker', 'run-' || n, CASE WHEN n % 13 = 5 THEN 'failed' ELSE 'success' END,
  ago((100000 - n) * 60), ago((100000 - n) * 60 - 2), ago((100000 - n) * 60 - 7 - n % 47)
FROM n WHERE n < 99988;

-- Every fifth event is of one busy asset, and every twentieth is from a task.
INSERT INTO asset_event (id, asset_id, extra, timestamp, watcher_id, idempotency_key, ordinal)
SELECT n + 1, CASE WHEN n % 5 = 0 THEN 1 ELSE n * 7919 % 10000 + 1 END,
  json_object('order', n, 'customer', 'Ada', 'amount', n % 977), ago((1000000 - n) * 6),
  CASE WHEN n % 5 = 0 THEN 1 ELSE n * 7919 % 10000 + 1 END, json_array('topic-' || (n % 40), n % 8, n), 0
FROM n WHERE n % 20 <> 7;

INSERT INTO asset_event (id, asset_id, extra, timestamp, watcher_id, idempotency_key, ordinal, source_dag_id,
  source_run_id, source_task_id)
SELECT n + 1, 10001 + n / 20 % 2000, json_object('rows', n % 977), ago((1000000 - n) * 6), 0, '~' || n, 0,
  dag(n / 20 % 2000), 'asset_triggered__' || (n / 20 % 2000 + n % 40 * 2000), 'publish'
FROM n WHERE n % 20 = 7;

-- A run of each DAG took what came before the last 20,000 events; for paused DAGs, all wait.
INSERT INTO queued_asset_event (dag_id, asset_event_id, asset_id, run_pk)
SELECT dag((asset_id - 1) / 5), id, asset_id,
  CASE WHEN (asset_id - 1) / 5 % 11 <> 10 AND id < 980000 THEN (asset_id - 1) / 5 + 1 + id / 25000 * 2000 END
FROM asset_event WHERE asset_id <= 10000 AND (asset_id - 1) % 5 < 2;

INSERT INTO parked_body (id, stream_digest, idempotency_key, data, size_bytes)
SELECT n + 1, printf('%064x', n % 12 + 1), 'key-' || n, CAST(json_object('order', n) AS BLOB), 20 FROM n WHERE n < 2400;

INSERT INTO parked_message (id, watcher_id, body_id, lane, idempotency_key, state, failures, error, traceback, parked_at)
SELECT n + 1, n % 12 + 1, n + 1, json_array('topic-0', n % 8), 'key-' || n, 'set_aside', 3,
  CASE n % 3 WHEN 0 THEN 'ValueError: cannot read the amount' WHEN 1 THEN 'KeyError: customer'
    ELSE 'TypeError: the order has no lines' END,
  'Traceback (most recent call last): ...', ago((2500 - n) * 9)
FROM n WHERE n < 2400;

INSERT INTO audit (at, actor, role, via, action, subject, before, after)
SELECT ago((5000 - n) * 70), 'ada', 'operator', 'http', 'dag.pause', dag(n % 2000), '{"is_paused": false}',
  '{"is_paused": true}'
FROM n WHERE n < 5000;

INSERT INTO instance (id, kind, started_at, expires_at, heartbeat_at, "release") VALUES
  ('node-1:41:a', 'triggerer', ago(90000), ago(-86400), ago(1), '0.1.0'),
  ('node-2:42:b', 'executor', ago(90000), ago(-86400), ago(1), '0.1.0'),
  ('node-1:43:c', 'scheduler', ago(90000), ago(-86400), ago(1), '0.1.0'),
  ('node-1:44:d', 'dag-processor', ago(90000), ago(-86400), ago(1), '0.1.0');
