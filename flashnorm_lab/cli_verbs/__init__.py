"""The verbs of `flashnorm-lab`, one module each.

To add a verb, write `cli_verbs/NAME.py` and put NAME into VERBS below. The module has:

- a docstring: its first line is the verb's line in `flashnorm-lab --help`, and all of it heads
  `flashnorm-lab NAME --help`;
- `arguments(parser)`: adds the verb's options to its argparse parser;
- `run(options) -> int`: does the work and returns the exit status. A LabError raised here (or in a `type=`
  function of an option) is told in one line on standard error, with status 2;
- optionally `EXTRA = True`: options that the verb does not know are kept in `options.extra`, in their order,
  instead of being an error.

Modules here import nothing heavy at the top: `--help` loads all of them.
"""

VERBS = ("lab", "doctor", "race", "hazards", "timeline", "speak", "export", "bench")
