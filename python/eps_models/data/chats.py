"""Renders conversations with a tokenizer's chat template and marks the tokens of the assistant."""

import array
import re
from typing import Any

from eps_models.data import errors
from eps_models.data.epsd import Document

_ASSISTANT = "assistant"
_GENERATION = re.compile(r"\{%-?\s*generation\b")


def render(tokenizer: Any, messages: list[dict[str, Any]], **options: Any) -> str:
    """Returns the text of a conversation. Errors: USAGE without a template, INVALID with the
    template's own reason."""
    if not tokenizer.chat_template:
        raise errors.usage("the tokenizer has no chat template: give --chat-template=FILE, or a "
                           "tokenizer of a chat model")
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, **options)
    except Exception as error:  # a template may raise anything
        raise errors.invalid(f"the chat template refuses the conversation: {error}") from error


def document(tokenizer: Any, messages: list[dict[str, Any]]) -> Document:
    """Returns the ids of a conversation, with a mask of the tokens that the assistant wrote.

    The template marks them itself if it has {% generation %}. Otherwise the text of each assistant
    message is what follows the prompt that asks for it. Errors: INVALID if the conversation has no
    assistant message, or if a prompt is not a prefix of the whole text.
    """
    check(messages)
    text = render(tokenizer, messages)
    if _GENERATION.search(tokenizer.get_chat_template()):
        found = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True,
                                              return_assistant_tokens_mask=True)
        mask = bytes(found["assistant_masks"])
    else:
        spans = _spans_by_prefix(tokenizer, messages, text)
        found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        mask = _mask_of(spans, found["offset_mapping"])
    if not any(mask):
        raise errors.invalid("no token of the conversation is the assistant's")
    return Document(array.array("I", found["input_ids"]), mask=mask)


def _mask_of(spans: list[tuple[int, int]], offsets: list[tuple[int, int]]) -> bytes:
    """Returns a byte for each token: 1 if the token begins in a span of characters."""
    mask = bytearray(len(offsets))
    place = 0
    for i, (begin, end) in enumerate(offsets):
        while place < len(spans) and begin >= spans[place][1]:
            place += 1
        mask[i] = place < len(spans) and begin >= spans[place][0] and end > begin
    return bytes(mask)


def check(messages: Any) -> None:
    """Refuses what is not a list of messages with an assistant among them."""
    if not isinstance(messages, list) or not messages:
        raise errors.invalid("the messages are not a list of objects with role and content")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise errors.invalid(f"message {number} is no object with role and content")
    if all(message["role"] != _ASSISTANT for message in messages):
        raise errors.invalid("no message has the role assistant, so nothing would be learned")


def _spans_by_prefix(tokenizer: Any, messages: list[dict[str, Any]],
                     text: str) -> list[tuple[int, int]]:
    spans = []
    for number, message in enumerate(messages):
        if message["role"] != _ASSISTANT:
            continue
        prompt = render(tokenizer, messages[:number], add_generation_prompt=True) if number else ""
        upto = render(tokenizer, messages[:number + 1])
        for prefix, what in ((prompt, "the prompt for"), (upto, "the text up to")):
            if not text.startswith(prefix):
                raise errors.invalid(
                    f"{what} message {number} is not the beginning of the whole conversation: the "
                    f"template rewrites earlier messages. Mark the assistant's text with "
                    f"{{% generation %}} in the template and give it as --chat-template=FILE")
        spans.append((len(prompt), len(upto)))
    return spans
