"""What people read: prompts into tokens, tokens into text, and text that grows token by token."""

import copy
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specviz.errors import BadInput, ContextFull, ModelUnavailable, TokenizerMismatch
from specviz.models.text.load import same_tokenizer
from specviz.models.text.text import TokenizerText, tokenizer_hash

SENTENCES = st.text(st.sampled_from("the quick fox  \n12 Größe 東京 🎉👩‍🚀 é\u0301�"), max_size=40)


@pytest.fixture(scope="module")
def text(byte_level):
    return TokenizerText(byte_level, "tiny", 128)


@pytest.fixture(scope="module")
def marked(sentencepiece):
    return TokenizerText(sentencepiece, "marked", 128)


def _plain(text, words):
    return list(text.tokenizer(words, add_special_tokens=False)["input_ids"])


def test_a_token_shows_its_text_its_bytes_or_its_name(text):
    emoji = _plain(text, "🎉")
    assert text.of(_plain(text, " fox")[0]).startswith(" ")
    assert text.of(2) == "<|im_end|>"
    assert text.of(10_000) == "<id 10000>"
    alone = [byte for byte in range(text.tokenizer.vocab_size) if text.of(byte) == "\\xf0"]
    assert len(alone) == 1 and len(emoji) >= 1


def test_a_blank_is_a_blank_in_either_spelling(text, marked):
    assert marked.of(marked.tokenizer.convert_tokens_to_ids("▁the")) == " the"
    assert marked.of(marked.tokenizer.convert_tokens_to_ids("<0xE2>")) == "\\xe2"
    assert marked.of(marked.tokenizer.convert_tokens_to_ids("<s>")) == "<s>"
    assert "Ġ" not in "".join(text.of(token) for token in _plain(text, "the quick brown fox"))


def test_a_character_appears_with_the_token_that_completes_it(marked):
    ids = [marked.tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in "🎉".encode()]
    assert marked.pieces([5], ids) == ("", "", "", "🎉")
    assert marked.pieces([5, *ids[:2]], ids[2:]) == ("", "🎉")


def test_broken_bytes_show_as_soon_as_they_are_known_to_be_broken(marked):
    lead = marked.tokenizer.convert_tokens_to_ids("<0xE2>")
    letter = marked.tokenizer.convert_tokens_to_ids("a")
    assert marked.pieces([letter], [lead, letter]) == ("", "\ufffda")


@given(data=st.data())
def test_pieces_of_any_tokens_join_to_the_decoded_text_wherever_they_are_cut(text, data):
    ids = data.draw(st.lists(st.integers(0, len(text.tokenizer) + 5), max_size=40))
    cut = data.draw(st.integers(0, len(ids)))
    pieces = text.pieces([], ids[:cut]) + text.pieces(ids[:cut], ids[cut:])
    assert pieces == text.pieces([], ids)
    assert len(pieces) == len(ids)
    joined, whole = "".join(pieces), text.decode(ids)
    # A character still open at the end is the only thing that may be missing.
    assert whole.startswith(joined) and set(whole[len(joined) :]) <= {"\ufffd"}


@given(words=SENTENCES, cut=st.integers(0, 20))
def test_sentencepiece_pieces_keep_the_blank_after_the_first_token(marked, words, cut):
    ids = _plain(marked, "the " + words)
    pieces = marked.pieces([], ids[:cut]) + marked.pieces(ids[:cut], ids[cut:])
    assert "".join(pieces) == marked.decode(ids)


def test_an_unknown_spelling_falls_back_on_decoding_everything():
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "hello": 1, "world": 2}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    text = TokenizerText(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>"), "words", 16)
    assert "".join(text.pieces([], [1, 2, 1])) == text.decode([1, 2, 1]) == "hello world hello"
    assert text.of(2) == "world"


def test_an_instruct_model_gets_its_chat_template_and_raw_goes_without(text):
    assert text.uses_template(raw=False) and not text.uses_template(raw=True)
    assert text.decode(text.encode("Hi")) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert text.decode(text.encode("Hi", raw=True)) == "Hi"


def test_a_base_model_goes_on_from_the_prompt(base_model):
    text = TokenizerText(base_model, "base", 128)
    assert not text.uses_template(raw=False)
    assert text.decode(text.encode("Hi")) == "Hi"


def test_a_raw_prompt_keeps_the_start_token_its_tokenizer_adds(sentencepiece):
    text = TokenizerText(sentencepiece, "marked", 128)
    assert text.encode("the", raw=True) == list(sentencepiece("the")["input_ids"])


def test_a_prompt_the_model_cannot_read_is_refused_with_both_lengths(text):
    with pytest.raises(ContextFull, match="1000000 characters"):
        text.encode("x" * 1_000_000)


@pytest.mark.parametrize("word", ["café", "čau", "Ġ", "ÿ", "née à", "東京"])
def test_an_added_token_is_shown_as_it_stands(word, byte_level):
    """Letters of the byte-level alphabet stand for bytes in other tokens; tokenizers decodes these as if they did here too."""
    tokenizer = copy.deepcopy(byte_level)
    tokenizer.add_tokens([word])
    text = TokenizerText(tokenizer, "tiny", 128)
    (token,) = _plain(text, word)
    around = _plain(text, "the fox")
    assert text.of(token) == word
    assert "".join(text.pieces([], [*around, token, *around])) == f"the fox{word}the fox"


def test_a_token_without_an_embedding_is_named(byte_level):
    tokenizer = copy.deepcopy(byte_level)
    tokenizer.add_tokens(["<extra>"])
    text = TokenizerText(tokenizer, "tiny", 128, rows=len(byte_level))
    assert text.encode("the fox", raw=True)
    for raw in (True, False):
        with pytest.raises(BadInput, match=rf"token {len(byte_level)} \('<extra>'\) has no row among the {len(byte_level)} emb"):
            text.encode("the <extra> fox", raw)


def test_a_template_that_renders_nothing_is_named(byte_level):
    tokenizer = copy.deepcopy(byte_level)
    tokenizer.chat_template = "{% if false %}x{% endif %}"
    with pytest.raises(ModelUnavailable, match="tiny's chat template renders nothing"):
        TokenizerText(tokenizer, "tiny", 128).encode("the fox")


def _model(name, tokenizer):
    return SimpleNamespace(name=name, tokenizer=tokenizer, tokenizer_hash=tokenizer_hash(tokenizer))


def test_the_hash_depends_on_tokens_not_on_templates(byte_level, base_model, sentencepiece):
    assert tokenizer_hash(byte_level) == tokenizer_hash(base_model) == tokenizer_hash(copy.deepcopy(byte_level))
    assert tokenizer_hash(byte_level) != tokenizer_hash(sentencepiece)
    assert len(tokenizer_hash(byte_level)) == 64


def test_models_of_one_family_pass(byte_level, base_model):
    same_tokenizer(_model("target", byte_level), _model("draft", base_model))


def test_a_mismatch_names_both_and_the_first_difference(byte_level, sentencepiece):
    with pytest.raises(TokenizerMismatch) as caught:
        same_tokenizer(_model("big", byte_level), _model("small", sentencepiece))
    said = str(caught.value)
    assert "big" in said and "small" in said and "token 0 is '<|endoftext|>' in one and '<unk>' in the other" in said


def test_a_target_may_have_tokens_for_pictures_besides(byte_level, sentencepiece):
    seeing = copy.deepcopy(byte_level)
    seeing.add_tokens(["<image>", "<end_of_utterance>"])
    same_tokenizer(_model("target", seeing), _model("draft", byte_level), further=True)
    same_tokenizer(_model("target", byte_level), _model("draft", byte_level), further=True)
    with pytest.raises(TokenizerMismatch, match="is None in one and '<image>'"):
        same_tokenizer(_model("target", byte_level), _model("draft", seeing), further=True)
    with pytest.raises(TokenizerMismatch, match="token 0 is"):
        same_tokenizer(_model("target", seeing), _model("draft", sentencepiece), further=True)
