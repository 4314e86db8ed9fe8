"""Fresh, stale and torn."""

import numpy as np
import pytest

from flashnorm_lab import outcomes
from flashnorm_lab.errors import LabError

DRAW = np.random.default_rng(3)
YS = [DRAW.standard_normal((2, 50)) for _ in range(3)]
RS = [DRAW.uniform(0.5, 2.0, 2) for _ in range(3)]
FRESH, STALE = outcomes.candidates(YS, RS)


def test_this_steps_value_is_fresh_also_after_rounding_to_float32():
    outcome = outcomes.classify(FRESH.astype(np.float32), FRESH, STALE)
    assert (outcome.label, outcome.source, outcome.stale_share) == ("fresh", "", 0.0)


@pytest.mark.parametrize(("y", "r"), [(1, 0), (0, 1), (1, 1), (2, 0)])
def test_an_older_y_or_r_is_stale_and_named(y, r):
    outcome = outcomes.classify(YS[y] * RS[r][:, None], FRESH, STALE)
    step = ("t", "t-1", "t-2")
    assert (outcome.label, outcome.source) == ("stale", f"y of step {step[y]}, r of step {step[r]}")
    assert outcome.stale_share > 0.9  # what is near zero equals both


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


def test_counts_name_all_three_labels():
    judged = [outcomes.classify(z, FRESH, STALE) for z in (FRESH, FRESH, YS[1] * RS[0][:, None])]
    assert outcomes.count(judged) == {"fresh": 2, "stale": 1, "torn": 0}
