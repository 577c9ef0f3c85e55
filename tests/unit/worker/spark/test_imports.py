import subprocess
import sys


def test_importing_the_package_imports_neither_pyspark_nor_arrow() -> None:
    code = (
        "import sys, triggerer.worker.spark\n"
        "print({'pyspark', 'pyarrow', 'pandas', 'py4j', 'grpc'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert shown.strip() == "set()"
