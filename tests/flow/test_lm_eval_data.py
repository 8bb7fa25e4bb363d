"""gsm8k and ifeval from locked files: lm-eval's own prompts and metrics, no hub, no network.

Must not break: the prompts are those of the task's YAML over the locked rows, the few-shot draw is the same in all
trials, both of gsm8k's metrics are kept (a reader who is given the other one reports 64 for 45), and an answer that the
extractor can't find is counted apart. datasets 5.2 finds no hand-made hub snapshot when offline
(huggingface/datasets#6837, #7551); nltk downloads its model in the middle of grading (lm-eval#2210).
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from entrypoint import task_folder
from entrypoint.errors import EvalcrateError, HarnessError
from entrypoint.record import Request
from tests.fakes import trial

TRAIN = [{"question": f"Shot {n}: what is {n} + {n}?", "answer": f"Twice {n}.\n#### {2 * n}"} for n in range(1, 13)]
TEST = [{"question": f"What is {n} + 1000?", "answer": f"Add.\n#### {n + 1000}"} for n in range(4)]
# strict wants "#### n"; flexible takes the last number
ANSWERS = ["So\n#### 1000", "The answer is 1,001.", "#### 7", "I can't say."]
VERDICTS = {"strict-match": [1, 0, 0, 0], "flexible-extract": [1, 1, 0, 0]}

WORDS = {"key": 1, "prompt": "Say it.", "instruction_id_list": ["length_constraints:number_words"]}
IFEVAL = [
    {**WORDS, "kwargs": [{"num_words": 3, "relation": "at least", "capital_frequency": None}]},
    {
        "key": 2,
        "prompt": "Shout twice.",
        "instruction_id_list": ["change_case:capital_word_frequency"],
        "kwargs": [{"num_words": None, "relation": None, "capital_frequency": 2, "capital_relation": "at least"}],
    },
    {
        "key": 3,
        "prompt": "Write sentences.",
        "instruction_id_list": ["length_constraints:number_sentences", "punctuation:no_comma"],
        "kwargs": [{"num_sentences": 2, "relation": "at least"}, {}],
    },
]


def gsm8k(folder: Path, **changes: Any) -> dict[str, Any]:
    """The task over an array (train) and over one object a line (test)."""
    train, test = folder / "train", folder / "test"
    train.write_text(json.dumps(TRAIN))
    test.write_text("".join(json.dumps(row) + "\n" for row in TEST))
    splits = {"train": [str(train)], "test": [str(test)]}
    data = [{"id": "openai/gsm8k", "config": "main", "format": "json", "splits": splits}]
    return trial.source("gsm8k", "lm_eval", _yaml("gsm8k"), **{"num_fewshot": 5, "data": data, **changes})


def _yaml(name: str) -> Path:
    folder = task_folder.find(trial.ROOT, name)
    assert folder is not None
    return folder


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("gsm8k")
    task = gsm8k(folder)
    trial.graded(trial.collect(folder, task, (42, 43)))
    return folder, task


def test_gsm8k_asks_the_locked_test_rows_after_five_turns_of_train_rows(
    collected: tuple[Path, dict[str, Any]],
) -> None:
    rows = trial.requests(collected[0])
    shots = {f"Question: {row['question']}\nAnswer:": row["answer"] for row in TRAIN}
    for number, row in enumerate(rows):
        turns = [turn.partition("\n")[2].removesuffix("<|im_end|>\n") for turn in row.prompt.split("<|im_start|>")[1:]]
        asked, answers = turns[:-1:2], turns[1:-1:2]
        assert asked[5:] == [f"Question: {TEST[number]['question']}\nAnswer:"]
        assert [shots[question] for question in asked[:5]] == answers
    assert len(rows) == len(TEST)


def test_gsm8ks_few_shot_draw_is_the_same_in_all_trials(collected: tuple[Path, dict[str, Any]]) -> None:
    first, second = (trial.requests(collected[0], seed) for seed in (42, 43))
    assert [row.prompt for row in first] == [row.prompt for row in second]
    assert [row.sampler_seed for row in first] != [row.sampler_seed for row in second]


@pytest.mark.parametrize("name", VERDICTS)
def test_gsm8k_keeps_both_metrics_and_scores_the_one_that_is_named(
    collected: tuple[Path, dict[str, Any]], name: str
) -> None:
    answer = trial.graded(trial.grade(*collected, lambda row: ANSWERS[row.sample], metric=f"exact_match,{name}"))
    results = answer["results"]
    assert (results["exact_match,strict-match"], results["exact_match,flexible-extract"]) == (0.25, 0.5)
    assert results["accuracy"] == sum(VERDICTS[name]) / 4
    assert [example["correctness"] for example in results["examples"]] == [bool(v) for v in VERDICTS[name]]


def test_a_gsm8k_answer_that_the_filter_does_not_find_is_counted_as_format_fail(
    collected: tuple[Path, dict[str, Any]],
) -> None:
    strict, flexible = (
        trial.graded(trial.grade(*collected, lambda row: ANSWERS[row.sample], metric=f"exact_match,{name}"))
        for name in VERDICTS
    )
    assert strict["counts"]["format_fail"] == 2
    assert strict["results"]["examples"][1]["model_answers"] == ["[invalid]"]
    assert flexible["counts"]["format_fail"] == 1


def test_a_task_whose_data_set_is_not_locked_is_refused_by_its_name(tmp_path: Path) -> None:
    refused = trial.collect(tmp_path, gsm8k(tmp_path, data=[]))
    assert isinstance(refused, HarnessError)
    assert str(refused).startswith("gsm8k: its data set openai/gsm8k is not locked")


# ---- ifeval ----


def ifeval(folder: Path, *, punkt: bool) -> dict[str, Any]:
    rows = folder / "rows"
    rows.write_text("".join(json.dumps(row) + "\n" for row in IFEVAL))
    data = [{"id": "google/IFEval", "config": None, "format": "json", "splits": {"train": [str(rows)]}}]
    if punkt:
        splits = {"all": [str(_punkt(folder / "punkt_tab.zip"))]}
        data.append({"id": "nltk/punkt_tab", "config": "tokenizers", "format": "zip", "splits": splits})
    return trial.source("ifeval", "lm_eval", _yaml("ifeval"), data=data)


def _punkt(file: Path) -> Path:
    """A model in the layout of nltk's own that knows one abbreviation: enough to see that it was read."""
    names = {"abbrev_types.txt": "mr\n", "collocations.tab": "", "sent_starters.txt": "", "ortho_context.tab": ""}
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in names.items():
            archive.writestr(f"punkt_tab/english/{name}", text)
    return file


def _follow(folder: Path, outputs: list[str], *, punkt: bool = True) -> dict[str, Any] | EvalcrateError:
    task = ifeval(folder, punkt=punkt)
    trial.graded(trial.collect(folder, task))

    def answer(row: Request) -> str:
        return outputs[row.sample]

    return trial.grade(folder, task, answer, metric="prompt_level_strict_acc,none")


def test_ifeval_judges_words_capitals_and_sentences_with_the_locked_model(tmp_path: Path) -> None:
    good = ["one two three", "HI THERE", "Mr. Fox ran. He won."]
    results = trial.graded(_follow(tmp_path, good))["results"]
    assert [example["correctness"] for example in results["examples"]] == [True, True, True]
    assert results["accuracy"] == results["inst_level_strict_acc,none"] == 1.0


def test_ifeval_tells_an_abbreviation_from_the_end_of_a_sentence(tmp_path: Path) -> None:
    bad = ["one two", "HI there", "Mr. Fox ran"]
    results = trial.graded(_follow(tmp_path, bad))["results"]
    assert [example["correctness"] for example in results["examples"]] == [False, False, False]
    assert results["inst_level_strict_acc,none"] == 0.25


def test_ifeval_without_its_nltk_model_is_refused_by_name(tmp_path: Path) -> None:
    refused = _follow(tmp_path, ["a", "b", "c"], punkt=False)
    assert isinstance(refused, HarnessError)
    assert str(refused).startswith("ifeval: its nltk resource punkt_tab is not among its locked data")
