"""Every write of a result, written down by the database itself, with the epoch that was the newest just then."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from tests.storage.places import Place
from tidegate.experiments.storage import Store

TABLE = "CREATE TABLE audit (experiment text, stage text, ordinal bigint, repetition int, epoch bigint, newest bigint)"
NOTED = """
INSERT INTO audit SELECT name, {stage}, NEW.ordinal, NEW.repetition, NEW.epoch, config.epoch
FROM tidegate_experiments AS e JOIN tidegate_execution_configs AS config ON config.experiment_id = e.id
WHERE e.id = NEW.experiment_id;
"""
STAGES = {"runs": "'task'", "annotations": "NEW.evaluator"}


class Write(NamedTuple):
    """One identity was written under an epoch."""

    experiment: str
    stage: str
    ordinal: int
    repetition: int
    epoch: int
    newest: int

    @property
    def identity(self) -> tuple[str, str, int, int]:
        return self[:4]


def audited(place: Place) -> None:
    """Makes the schema, and has every write of a result written down from now on."""
    asyncio.run(_made(place.url))
    place.sql(TABLE)
    for table, stage in STAGES.items():
        noted = NOTED.format(stage=stage)
        if place.on_sqlite:
            for act in ("INSERT", "UPDATE"):
                place.sql(
                    f"CREATE TRIGGER audit_{act}_{table} AFTER {act} ON tidegate_{table} FOR EACH ROW BEGIN {noted} END"
                )
        else:
            place.sql(
                f"CREATE FUNCTION audit_{table}() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN {noted} RETURN NULL; END $$"
            )
            place.sql(
                f"CREATE TRIGGER audit AFTER INSERT OR UPDATE ON tidegate_{table} "
                f"FOR EACH ROW EXECUTE FUNCTION audit_{table}()"
            )


def writes(place: Place) -> list[Write]:
    return [Write(*row) for row in place.sql("SELECT * FROM audit")]


async def _made(url: str) -> None:
    await (await Store.open(url)).close()
