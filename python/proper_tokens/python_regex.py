"""The parts of Python's private regular-expression parser (`re._parser`) that we use.

No other module imports them. `tests/unit/test_python_regex.py` checks the parser's output on every
supported Python. This module needs only the standard library.
"""

from __future__ import annotations

import re._constants as constants
import re._parser as parser

parse = parser.parse
"""Parse a pattern to a sequence of pairs of a kind and a value; `re.error` if it is invalid."""

ANY = constants.ANY
ASSERT = constants.ASSERT
ASSERT_NOT = constants.ASSERT_NOT
AT = constants.AT
AT_BEGINNING = constants.AT_BEGINNING
AT_END = constants.AT_END
ATOMIC_GROUP = constants.ATOMIC_GROUP
BRANCH = constants.BRANCH
CATEGORY = constants.CATEGORY
CATEGORY_DIGIT = constants.CATEGORY_DIGIT
CATEGORY_NOT_DIGIT = constants.CATEGORY_NOT_DIGIT
CATEGORY_NOT_SPACE = constants.CATEGORY_NOT_SPACE
CATEGORY_NOT_WORD = constants.CATEGORY_NOT_WORD
CATEGORY_SPACE = constants.CATEGORY_SPACE
CATEGORY_WORD = constants.CATEGORY_WORD
IN = constants.IN
LITERAL = constants.LITERAL
MAXREPEAT = constants.MAXREPEAT
MAX_REPEAT = constants.MAX_REPEAT
MIN_REPEAT = constants.MIN_REPEAT
NEGATE = constants.NEGATE
NOT_LITERAL = constants.NOT_LITERAL
POSSESSIVE_REPEAT = constants.POSSESSIVE_REPEAT
RANGE = constants.RANGE
SUBPATTERN = constants.SUBPATTERN
