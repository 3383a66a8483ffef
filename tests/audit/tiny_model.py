"""Makes a tiny Llama that has learned the answers of the validation by heart, or has learned nothing.

`python tiny_model.py PAIRS.json FOLDER [STEPS]`, in an environment with torch, transformers and tokenizers. PAIRS holds
[prompt, answer, variants] each; `#` in a prompt stands for any number. STEPS 0 leaves the weights random.
A model that knows the answers proves that a pass is possible, and one that does not, that it is needed.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 2048
BATCH = 24
GOOD = 0.004
"""Mean loss of a batch at which the answers are known."""
IGNORED = -100


def tokenizer_for(texts: list[str]) -> Any:
    """A byte-level BPE tokenizer; digits stand alone, so that any number can be written."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def train(model: Any, tokenizer: Any, pairs: list[tuple[str, str]], steps: int) -> float:
    """Learn the answers by heart; returns the last loss."""
    draw = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    loss, calm = float("inf"), 0
    for step in range(steps):
        batch = [example(tokenizer, *draw.choice(pairs), draw) for _ in range(BATCH)]
        width = max(len(tokens) for tokens, _ in batch)
        tokens = torch.full((BATCH, width), tokenizer.eos_token_id)
        labels = torch.full((BATCH, width), IGNORED)
        for row, (text, from_place) in enumerate(batch):
            tokens[row, : len(text)] = torch.tensor(text)
            labels[row, from_place : len(text)] = tokens[row, from_place : len(text)]
        found = model(input_ids=tokens, labels=labels).loss
        optimizer.zero_grad()
        found.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        loss = float(found)
        calm = calm + 1 if loss < GOOD else 0
        if step % 20 == 0:
            print(f"step {step}: loss {loss:.4f}", flush=True)
        if calm >= 10:
            break
    return loss


def example(tokenizer: Any, prompt: str, answer: str, draw: random.Random) -> tuple[list[int], int]:
    """Tokens of prompt and answer, and where the answer begins. Both are split as a server splits them."""
    text = prompt.replace("#", str(draw.randrange(1, 10 ** draw.randint(1, 4))))
    asked = tokenizer.encode(text)
    return [*asked, *tokenizer.encode(answer), tokenizer.eos_token_id], len(asked)


def main(source: Path, target: Path, steps: int) -> None:
    """Make the model."""
    pairs = [(prompt, answer) for prompt, answer, _ in json.loads(source.read_text())]
    weights = [times for _, _, times in json.loads(source.read_text())]
    pairs = [pair for pair, times in zip(pairs, weights, strict=True) for _ in range(times)]
    tokenizer = tokenizer_for([prompt + answer for prompt, answer in pairs])
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=192, intermediate_size=384, num_hidden_layers=3, num_attention_heads=3,
            num_key_value_heads=3, head_dim=64, max_position_embeddings=4096, bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id, tie_word_embeddings=False,
        )
    )  # fmt: skip
    if steps:
        print(f"loss {train(model, tokenizer, pairs, steps):.5f}")
    model.to(torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
