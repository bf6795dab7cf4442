"""The search of a study by Optuna (Akiba et al. 2019, arXiv:1907.10902): it asks for trials and tells their scores.

The journal holds every trial and its values, so a command that is repeated after a kill continues the trials that were running.
Each value of a trial is drawn by a sampler of its own seed: it follows from the results before it, not from earlier draws.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from learner.settings.schema import table_of
from setting import Log, OneOf, Search
from tools.tuning.ranges import contains
from tools.tuning.study import COMPLETE, MARKS, RUNNING, StudyPlan, Trial

if TYPE_CHECKING:
    import optuna

JOURNAL = "journal.log"
FIRST_TRIALS = 5
"""Trials that have ended before one is pruned, and random ones before tpe chooses."""
FIRST_MARK = MARKS // 5
"""Mark before which no trial is pruned: a fifth of its first run."""


class OptunaSearch:
    """Gives the values of trials, and takes up how they end. Raises ValueError without the package optuna, or if the journal
    is damaged.

    study: its folder is locked by this process.
    """

    def __init__(self, study: StudyPlan) -> None:
        try:
            import optuna
            from optuna.storages.journal import JournalFileBackend
        except ModuleNotFoundError:
            raise ValueError(
                "op_mode: wanted the package optuna with --op_mode=tune, got an installation without it; run "
                "pip install -r requirements-tune.txt"
            ) from None
        self._optuna, self.study = optuna, study
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        journal = study.folder / JOURNAL
        never, medians = optuna.pruners.NopPruner(), optuna.pruners.MedianPruner(FIRST_TRIALS, FIRST_MARK)
        try:
            _drop_cut_line(journal)
            (journal.with_name(f"{journal.name}.lock")).unlink(missing_ok=True)  # of a process that was killed
            self._search = optuna.create_study(
                storage=optuna.storages.JournalStorage(JournalFileBackend(str(journal))),
                study_name=study.name,
                direction="maximize",
                load_if_exists=True,
                pruner=medians if study.tuning.prune else never,
            )
        except Exception as error:  # Optuna checks no line of it
            raise ValueError(
                f"{journal}: wanted the journal of a search, got one that cannot be read: {error!r:.200}"
            ) from None
        self._open: dict[int, optuna.Trial] = {}

    def trials(self) -> list[Trial]:
        """All trials so far, in order."""
        return [self._read(frozen) for frozen in self._frozen()]

    def unfinished(self) -> list[Trial]:
        """The trials that were running when an earlier command ended; they are open again."""
        found = [frozen for frozen in self._frozen() if frozen.state == self._optuna.trial.TrialState.RUNNING]
        asked = [self._optuna.trial.Trial(self._search, frozen._trial_id) for frozen in found]
        return [self._opened(trial, dict(frozen.intermediate_values)) for trial, frozen in zip(asked, found, strict=True)]

    def ask(self) -> Trial:
        """The next trial. The first one has the values that the settings have without a search, if they are in the ranges."""
        given = self.study.given_values
        ranges = self.study.ranges.items()
        if not self._search.get_trials(deepcopy=False) and all(contains(search, given[name]) for name, search in ranges):
            self._search.enqueue_trial(given)
        return self._opened(self._search.ask(), {})

    def report(self, trial: Trial, curve: dict[int, float]) -> bool:
        """Take a trial's curve so far. Returns whether the trial should end."""
        asked = self._open[trial.number]
        new = {mark: value for mark, value in curve.items() if mark not in trial.curve}
        for mark, value in new.items():
            asked.report(value, mark)
        trial.curve |= new
        return asked.should_prune()

    def tell(self, trial: Trial) -> None:
        """Take the end of a trial: its state, its score, its reason and its batch size."""
        asked = self._open.pop(trial.number)
        for name in ("state", "score", "reason", "batch_size"):
            asked.set_user_attr(name, getattr(trial, name))
        if trial.state == COMPLETE:
            self._search.tell(asked, trial.score)
        else:
            # A trial that failed counts as pruned too: the sampler learns that its values are bad.
            self._search.tell(asked, state=self._optuna.trial.TrialState.PRUNED)

    def importances(self) -> dict[str, float]:
        """The part of the variance of scores that each setting explains (PED-ANOVA, arXiv:2304.10255); empty if unknown."""
        if len(self.study.ranges) < 2 or len({trial.score for trial in self.trials() if trial.state == COMPLETE}) < 2:
            return {}
        return dict(
            self._optuna.importance.get_param_importances(
                self._search, evaluator=self._optuna.importance.PedAnovaImportanceEvaluator()
            )
        )

    def _frozen(self) -> list[Any]:
        states = self._optuna.trial.TrialState
        return [each for each in self._search.get_trials(deepcopy=False) if each.state != states.WAITING]

    def _read(self, frozen: Any) -> Trial:
        about = frozen.user_attrs
        running = frozen.state == self._optuna.trial.TrialState.RUNNING
        return Trial(
            number=frozen.number + 1,
            settings=dict(frozen.params),
            state=RUNNING if running else about["state"],
            score=about.get("score"),
            reason=about.get("reason", ""),
            curve=dict(frozen.intermediate_values),
            batch_size=about.get("batch_size"),
        )

    def _opened(self, asked: optuna.Trial, curve: dict[int, float]) -> Trial:
        """An open trial with a value of each setting. Values that the journal has stay: a kill may have left some of them."""
        self._open[asked.number + 1] = asked
        values = {}
        for place, (name, search) in enumerate(self.study.ranges.items()):
            self._search.sampler = self._sampler(asked.number, place)
            values[name] = self._suggested(asked, name, search)
        return Trial(asked.number + 1, values, curve=curve)

    def _sampler(self, *place: int) -> Any:
        """The sampler of a value. place: of the trial, and of the setting in it."""
        seed = int(np.random.SeedSequence([self.study.seed, *place]).generate_state(1)[0])
        if self.study.tuning.method == "random":
            return self._optuna.samplers.RandomSampler(seed=seed)
        return self._optuna.samplers.TPESampler(seed=seed, n_startup_trials=FIRST_TRIALS, multivariate=False)

    def _suggested(self, asked: optuna.Trial, name: str, search: Search) -> Any:
        if isinstance(search, OneOf):
            return asked.suggest_categorical(name, search.values)
        is_log = isinstance(search, Log)
        if table_of(self.study.agent)[name].type is int:
            return asked.suggest_int(name, int(search.low), int(search.high), log=is_log)
        return asked.suggest_float(name, search.low, search.high, log=is_log)


def _drop_cut_line(journal: Path) -> None:
    """Remove a last line without an end, which a kill has left."""
    if journal.is_file() and (content := journal.read_bytes()) and not content.endswith(b"\n"):
        journal.write_bytes(content[: content.rfind(b"\n") + 1])
