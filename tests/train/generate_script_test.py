"""Runs train/generate.py."""


def test_generate_writes_after_a_prompt_and_repeats_by_seed(run, succeed, here):
    flags = (f"--workdir={run[0]}", "--prompt=Sentence é", "--max_tokens=60")
    sampled = ("generate.py", *flags, "--seed=1", "--top_p=0.9")
    first = succeed(*sampled)
    assert first.startswith("Sentence é")
    assert len(first.encode()) > 60
    assert succeed(*sampled) == first
    greedy = succeed("generate.py", *flags, "--temperature=0")
    assert greedy != first
    # What Python makes of a byte that is not UTF-8.
    printed, error = here("generate.py", flags[0], "--prompt=a\udcff")
    assert "`prompt` must be" in error and printed == ""
    printed, error = here("generate.py", *flags, "--seed=2147483647")
    assert "seed=2147483647" in error and printed == ""
