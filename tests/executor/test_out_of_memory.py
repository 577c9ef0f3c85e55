"""A task's process runs out of memory: the run's error, and the start of the next run."""

import re

import pytest

from tests.executor.conftest import House

GREEDY = """
    import resource

    def limit(extra):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + extra, resource.RLIM_INFINITY))

    with DAG("greedy"):
        @task
        def greedy(params):
            print("process", os.getpid())
            if params["how"] == "nothing":
                return "done"
            limit(64 << 20)
            if params["how"] == "at once":
                return len(bytearray(1 << 30))
            kept = []
            while True:
                kept.append(object() if params["how"] == "bit by bit" else bytes(1000))
        greedy()
    """


@pytest.mark.parametrize("how", ["at once", "bit by bit", "in pieces"])
async def test_a_task_that_finds_no_more_memory_fails_its_run_and_the_next_one_runs(
    house: House, how: str
) -> None:
    await house.add_dag("greedy", GREEDY)
    async with house.executor(workers=1):
        (run,) = await house.ended(*await house.queue("greedy", params={"how": how}))
        (after,) = await house.ended(*await house.queue("greedy", params={"how": "nothing"}))
    assert (run.state, after.state) == ("failed", "success")
    assert "MemoryError" in (run.error or "")
    assert process_of(house.log(after)) != process_of(house.log(run))


def process_of(log: str) -> str:
    (found,) = re.findall(r"process (\d+)", log)
    return str(found)


HOARDS = """
    with DAG("hoards"):
        @task
        def hoards(spark, params):
            gateway, jvm = spark.sparkContext._gateway, spark.sparkContext._jvm
            print("process", jvm.java.lang.ProcessHandle.current().pid())
            if params["hoard"]:
                kept = jvm.java.util.ArrayList()
                jvm.java.lang.System.getProperties().put("kept", kept)
                size = 64 << 20
                while True:
                    kept.append(gateway.new_array(jvm.byte, size))
                    if kept.size() > 10:
                        size = max(size // 2, 1000)
            return spark.range(1000).selectExpr("sum(id) AS s").collect()[0].s
        hoards()
    """


@pytest.mark.soak
async def test_a_jvm_that_finds_no_more_heap_fails_its_run_and_the_next_one_runs(
    house: House,
) -> None:
    await house.add_dag("hoards", HOARDS, needs_spark=True)
    spark = {"mode": "classic", "master": "local[1]", "conf": {"spark.driver.memory": "600m"}}
    async with house.executor(workers=1, spark=spark):
        (run,) = await house.ended(
            *await house.queue("hoards", params={"hoard": True}), timeout=200
        )
        (after,) = await house.ended(
            *await house.queue("hoards", params={"hoard": False}), timeout=120
        )
    assert (run.state, after.state) == ("failed", "success")
    assert "OutOfMemoryError: Java heap space" in house.log(run)
    assert "Spark's driver ran out of heap memory" in (run.error or "")
    # The second run had another JVM, so the memory of the first JVM was freed.
    assert process_of(house.log(after)) != process_of(house.log(run))
