"""Code that writes outputs to an object store or HDFS.

One write breaks off after it has created its commit file, and before it moves its files to their final names.
"""

from typing import Final

WRITE: Final = """
rows = session.range(10).selectExpr("id", "id % 2 AS day", "'a:/=' AS place")

def write(token):
    return Output(token, lambda: True).parquet(rows, path, partition_by=["day", "place"])

def count():
    return len(session.read.parquet(path).collect())

print(write("f" * 32), write("f" * 32), write("0" * 32), count())

class Killed(BaseException):
    pass

def die(self, source, target):
    raise Killed

move, hadoop_files.HadoopFiles.move = hadoop_files.HadoopFiles.move, die
try:
    write("a" * 32)
except Killed:
    print("killed", count())
hadoop_files.HadoopFiles.move = move
print(write("b" * 32), write("a" * 32), count())
"""
WRITTEN: Final = ["written was_there written 20", "killed 20", "written was_there 40"]
"""The lines that `WRITE` prints."""
