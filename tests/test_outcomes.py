"""Fresh, stale, torn and early."""

import numpy as np
import pytest

from flashnorm_lab import outcomes
from flashnorm_lab.errors import LabError

DRAW = np.random.default_rng(3)
YS = [DRAW.standard_normal((2, 50)) for _ in range(3)]
RS = [DRAW.uniform(0.5, 2.0, 2) for _ in range(3)]
FRESH, STALE = outcomes.candidates(YS, RS)
LATER_YS = [DRAW.standard_normal((2, 50)) for _ in range(2)]
LATER_RS = [DRAW.uniform(0.5, 2.0, 2) for _ in range(2)]
EARLY = outcomes.later(YS, RS, LATER_YS, LATER_RS)


def test_this_steps_value_is_fresh_also_after_rounding_to_float32():
    outcome = outcomes.classify(FRESH.astype(np.float32), FRESH, STALE)
    assert (outcome.label, outcome.source, outcome.stale_share) == ("fresh", "", 0.0)


@pytest.mark.parametrize(("y", "r"), [(1, 0), (0, 1), (1, 1), (2, 0)])
def test_an_older_y_or_r_is_stale_and_named(y, r):
    outcome = outcomes.classify(YS[y] * RS[r][:, None], FRESH, STALE)
    step = ("t", "t-1", "t-2")
    assert (outcome.label, outcome.source) == ("stale", f"y of step {step[y]}, r of step {step[r]}")
    assert outcome.stale_share > 0.9  # what is near zero equals both


@pytest.mark.parametrize(("y", "r"), [(1, 0), (0, 1), (1, 1), (2, 0), (1, 2), (-1, 1), (2, -2)])
def test_a_later_y_or_r_is_early_and_named(y, r):
    ys = dict(zip((0, -1, -2, 1, 2), (*YS, *LATER_YS), strict=True))
    rs = dict(zip((0, -1, -2, 1, 2), (*RS, *LATER_RS), strict=True))
    outcome = outcomes.classify(ys[y] * rs[r][:, None], FRESH, STALE, early=EARLY)
    step = ("t", "t+1", "t+2", "t-2", "t-1")
    assert (outcome.label, outcome.source) == ("early", f"y of step {step[y]}, r of step {step[r]}")
    assert set(outcome.mask.ravel()) <= {outcomes.FRESH, outcomes.EARLY}
    assert (outcome.mask == outcomes.EARLY).mean() > 0.9
    # Whoever does not look for later contents takes it for a mix.
    assert outcomes.classify(ys[y] * rs[r][:, None], FRESH, STALE).label == "torn"


def test_every_later_pair_is_looked_for_once_and_none_that_has_no_later_part():
    assert len(EARLY) == 5 * 5 - 3 * 3
    assert next(iter(EARLY)) in ("y of step t, r of step t+1", "y of step t+1, r of step t")
    assert not set(EARLY) & set(STALE)


def test_an_older_source_is_named_before_a_later_one():
    same = YS[1] * RS[0][:, None]
    outcome = outcomes.classify(same, FRESH, {"older": same}, early={"later": same})
    assert (outcome.label, outcome.source) == ("stale", "older")
    assert outcomes.EARLY not in outcome.mask


def test_a_mix_of_this_step_and_a_later_one_is_torn_and_the_mask_says_where():
    z = FRESH.copy()
    z[0, :20] = (LATER_YS[0] * RS[0][:, None])[0, :20]
    outcome = outcomes.classify(z, FRESH, STALE, early=EARLY)
    assert outcome.label == "torn"
    assert not outcome.mask[0, 20:].any()
    assert not outcome.mask[1].any()
    assert (outcome.mask[0, :20] == outcomes.EARLY).mean() > 0.8


def test_a_mix_is_torn_and_the_mask_says_where():
    z = FRESH.copy()
    z[0, 10:30] = (YS[1] * RS[0][:, None])[0, 10:30]
    z[1, 40] = np.nan
    outcome = outcomes.classify(z, FRESH, STALE)
    assert outcome.label == "torn"
    assert set(map(tuple, np.argwhere(outcome.mask == outcomes.STALE))) == {(0, i) for i in range(10, 30)}
    assert set(map(tuple, np.argwhere(outcome.mask == outcomes.NEITHER))) == {(1, 40)}


def test_two_different_older_values_are_torn_not_stale():
    z = YS[1] * RS[0][:, None]
    z[:, 25:] = (YS[2] * RS[0][:, None])[:, 25:]
    assert outcomes.classify(z, FRESH, STALE).label == "torn"


def test_a_value_that_is_both_counts_as_this_steps():
    assert outcomes.classify(FRESH, FRESH, {"the same input twice": FRESH}).label == "fresh"


def test_shapes_and_a_reference_with_nan_are_refused():
    with pytest.raises(LabError, match=r"\[1, 50\], expected z's \[2, 50\]"):
        outcomes.classify(FRESH, FRESH[:1], {})
    with pytest.raises(LabError, match="NaN"):
        outcomes.classify(FRESH, FRESH * np.nan, {})
    with pytest.raises(LabError, match="later has shape"):
        outcomes.classify(FRESH, FRESH, {}, early={"later": FRESH[:1]})


def test_counts_name_all_labels_and_words_leave_early_out_where_there_is_none():
    judged = [outcomes.classify(z, FRESH, STALE) for z in (FRESH, FRESH, YS[1] * RS[0][:, None])]
    counts = outcomes.count(judged)
    assert counts == {"fresh": 2, "stale": 1, "torn": 0, "early": 0}
    assert outcomes.told(counts) == "2 fresh, 1 stale, 0 torn"
    assert outcomes.told({"fresh": 2, "early": 3}) == "2 fresh, 0 stale, 0 torn, 3 early"
