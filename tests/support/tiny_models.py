"""Small random models with a real tokenizer, saved as ordinary model folders; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
CHAT_TEMPLATE = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One id per byte (after three special ids): every text round-trips."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([PAD, BOS, EOS, *alphabet])}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token=BOS, eos_token=EOS, pad_token=PAD)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def save_tiny_llama(
    folder: Path,
    *,
    vocab_size: int = 259,
    hidden_size: int = 48,
    layers: int = 2,
    tied: bool = True,
    context: int = 128,
    seed: int = 0,
    spread: float = 0.2,
) -> Path:
    """Save a random Llama. ``spread`` is the scale of its weights: large enough that probabilities are uneven."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        tie_word_embeddings=tied,
        initializer_range=spread,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def save_tiny_gpt2(folder: Path) -> Path:
    """Save a random GPT-2: absolute positions, biases, dropout in its configuration."""
    config = GPT2Config(
        vocab_size=259, n_positions=64, n_embd=48, n_layer=2, n_head=4, initializer_range=0.2,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder
