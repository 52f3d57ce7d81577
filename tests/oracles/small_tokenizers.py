"""Trains small tokenizers on a text that every Debian has, and saves them as folders."""

import collections

import tokenizers
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = "/usr/share/common-licenses/GPL-3"
VOCABULARY = 600
END = "<|endoftext|>"

# Keeps every message as it is; what the assistant wrote lies between its header and <|end|>.
CHAT = ("{% for m in messages %}{{ '<|' + m.role + '|>' }}"
        "{% if m.role == 'assistant' %}%s{{ m.content + '<|end|>' }}%s"
        "{% else %}{{ m.content + '<|end|>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")
CHAT_WITH_MARKS = CHAT.replace("%s", "{% generation %}", 1).replace("%s", "{% endgeneration %}", 1)
CHAT_PLAIN = CHAT.replace("%s", "")
# Shortens what the assistant wrote before the last message.
CHAT_REWRITING = ("{% for m in messages %}{{ '<|' + m.role + '|>' }}"
                  "{{ m.content if loop.last or m.role != 'assistant' else m.content[:3] }}"
                  "{{ '<|end|>' }}{% endfor %}"
                  "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")
CHAT_TOKENS = ["<|user|>", "<|system|>", "<|assistant|>", "<|end|>"]


def bpe(folder, chat_template="", vocabulary=VOCABULARY):
    """As GPT-2's: bytes, and an end of text."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train([TEXT], trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END, *CHAT_TOKENS], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)
    if chat_template:
        wrapped.chat_template = chat_template
    return _save(wrapped, folder)


def frequent_pieces(texts, count):
    """Returns `count` pieces for word_piece(), the same in each call: the characters, and the most
    frequent words and endings. WordPieceTrainer resolves ties differently in each process."""
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    words = collections.Counter(word for text in texts for word, _ in split(text.lower()))
    characters = sorted(set("".join(words)))
    pieces = collections.Counter(words)
    for word, times in words.items():
        for length in range(2, min(6, len(word))):
            pieces["##" + word[-length:]] += times
    ordered = sorted(pieces, key=lambda piece: (-pieces[piece], piece))
    ordered = [*characters, *("##" + character for character in characters), *ordered]
    return list(dict.fromkeys(ordered))[:count]


def word_piece(folder, pieces=()):
    """As BERT's: words in lower case between [CLS] and [SEP], with types."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {piece: i for i, piece in enumerate([*special, *pieces])} if pieces else None
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    if not pieces:
        tokenizer.train([TEXT], trainers.WordPieceTrainer(
            vocab_size=VOCABULARY, special_tokens=special, show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return _save(transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"]), folder)


def unigram(folder):
    """As T5's: pieces with a mark for spaces."""
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train([TEXT], trainers.UnigramTrainer(
        vocab_size=VOCABULARY, special_tokens=["<unk>", "</s>"], unk_token="<unk>",
        show_progress=False))
    return _save(transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>"), folder)


def _save(wrapped, folder):
    wrapped.save_pretrained(folder)
    return str(folder)
