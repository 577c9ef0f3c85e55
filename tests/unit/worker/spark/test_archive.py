import os
from pathlib import Path

import pytest

from triggerer.worker.spark.jvm.archive import ClassArchive, archive_for
from triggerer.worker.spark.jvm.java import Java


@pytest.fixture
def archive(tmp_path: Path) -> ClassArchive:
    return ClassArchive(tmp_path, "java-17-spark-4", needs_base=False)


def publish(archive: ClassArchive, path: Path, content: str = "classes") -> None:
    draft = archive.new_draft()
    draft.write_text(content)
    archive.publish(draft, path)


def test_an_archive_is_usable_once_it_was_published(archive: ClassArchive) -> None:
    assert not archive.is_usable()
    publish(archive, archive.path)
    assert archive.is_usable()
    assert archive.drafts() == []


def test_an_archive_that_was_cut_short_is_not_used_since_java_17_crashes_on_it(
    archive: ClassArchive,
) -> None:
    publish(archive, archive.path)
    os.truncate(archive.path, 3)
    assert not archive.is_usable()


def test_an_archive_whose_publishing_was_interrupted_is_not_used(archive: ClassArchive) -> None:
    archive.path.write_text("classes")
    assert not archive.is_usable()


def test_a_java_without_classes_of_its_own_archived_needs_both_files(tmp_path: Path) -> None:
    archive = ClassArchive(tmp_path, "java-21-spark-4", needs_base=True)
    publish(archive, archive.path)
    assert not archive.is_usable()
    publish(archive, archive.base_path)
    assert archive.is_usable()


def test_a_discarded_archive_is_gone_and_may_be_discarded_again(archive: ClassArchive) -> None:
    publish(archive, archive.path)
    archive.discard()
    archive.discard()
    assert not archive.is_usable()


def test_a_new_archive_leaves_only_the_newest_of_the_others(tmp_path: Path) -> None:
    for age, key in enumerate(["third", "second", "first"]):
        old = ClassArchive(tmp_path, key, needs_base=True)
        for path in (old.path, old.base_path):
            publish(old, path)
            os.utime(path, (1000 - age, 1000 - age))
    archive = ClassArchive(tmp_path, "new", needs_base=False)
    publish(archive, archive.path)
    assert sorted(path.name for path in tmp_path.glob("*.jsa")) == [
        "new.jsa",
        "third.base.jsa",
        "third.jsa",
    ]


def test_each_java_and_each_installation_of_spark_has_an_archive_of_its_own(tmp_path: Path) -> None:
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)

    def key(version: str = "17.0.1", spark: str = "4.3.0") -> str:
        java = Java(Path("/jdk"), version, has_vector_module=True, source="PATH")
        return archive_for(java, tmp_path / "spark", spark, tmp_path).key

    keys = [key(), key(version="17.0.2"), key(spark="4.3.1")]
    os.utime(jars, (1, 1))
    keys.append(key())
    assert len(set(keys)) == 4
    assert key() == keys[-1]
