"""A power cut after each change of a real store; `make faults` checks nodes under load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.faults.calls import Change
from tests.faults.power import check_record
from tests.faults.store_load import StoreLoad


class PowerTests(SynchronousTestCase):
    """A store of a process of its own"""

    def test_every_prefix(self) -> None:
        """No variant is torn, lost or back that was removed, after a power cut at any moment (D80).

        Without syncs of their folders, variants are lost, and come back.
        """
        base = Path(self.mktemp()).resolve()
        base.mkdir()
        load = StoreLoad(base)
        load.run_steps()
        changes = load.changes
        report = check_record(changes, load.promises, share=8)
        self.assertEqual({}, report.findings, str(report))
        unsynced = [
            # What changes nothing.
            replace(each, change=Change.CONTENT)
            if each.change is Change.SYNCED and len(each.path) == 2
            else each
            for each in changes
        ]
        report = check_record(unsynced, load.promises, share=16)
        lost, back = "a variant is lost whose write-back has ended", "a removed variant is back"
        self.assertLessEqual({lost, back}, set(report.findings))
