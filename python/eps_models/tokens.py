"""Serves one tokenizer to another program: python -m eps_models.tokens DIR.

Reads one request for each line of stdin and writes one answer for each line of stdout, both JSON
objects. Ends at the end of stdin.

  first line of the answers      {"ready": SIZE OF THE VOCABULARY}
  {"encode": TEXT}               {"ids": [...]}  a prompt, as transformers encodes it
  {"decode": [...]}              {"text": TEXT}
  {"chat": [{role, content}]}    {"ids": [...]}  the prompt that the assistant continues
  anything else, or an error     {"error": TEXT}
"""

import array
import json
import sys
from typing import Any

from eps_models.data import errors, vocabulary as vocabularies


def answer(vocabulary: vocabularies.Vocabulary, line: str) -> dict[str, Any]:
    """Returns the answer to one request."""
    try:
        request = json.loads(line)
        (kind, value), = request.items()
        if kind == "encode":
            return {"ids": list(vocabulary.text_prompt(value))}
        if kind == "decode":
            return {"text": vocabulary.decode(array.array("I", value))}
        if kind == "chat":
            return {"ids": list(vocabulary.chat_prompt(value))}
        return {"error": f"unknown request {kind}"}
    except errors.DataError as error:
        return {"error": str(error)}
    except (ValueError, TypeError, AttributeError, OverflowError, KeyError) as error:
        return {"error": f"no request of the form {{kind: value}}: {error}"}


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m eps_models.tokens DIR", file=sys.stderr)
        return errors.USAGE
    try:
        vocabulary = vocabularies.load(sys.argv[1])
    except errors.DataError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return error.code
    print(json.dumps({"ready": vocabulary.size}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(vocabulary, line)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
