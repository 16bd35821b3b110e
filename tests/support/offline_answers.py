"""`python offline_answers.py MODEL < prompts.json`: what vLLM alone answers, on one node, without any connector.

Reads [[token ids, number of tokens], ...] and prints the token ids of each greedy answer.
"""

import json
import os
import sys


def main() -> None:
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    prompts = json.load(sys.stdin)
    llm = LLM(
        model=sys.argv[1],
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_model_len=4096,
        max_num_batched_tokens=1024,
        max_num_seqs=8,
        block_size=32,
        kv_cache_memory_bytes=256 << 20,
        enable_prefix_caching=False,
        disable_log_stats=True,
    )
    answers = []
    for token_ids, num_tokens in prompts:
        params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True, detokenize=False)
        # One after another: answers of a batch may differ in their last bits.
        (output,) = llm.generate(TokensPrompt(prompt_token_ids=token_ids), params, use_tqdm=False)
        answers.append(list(output.outputs[0].token_ids))
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
