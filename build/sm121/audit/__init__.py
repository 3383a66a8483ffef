"""From a wheel to a running server: what a checkpoint declares, what vLLM selects, what the artifact delivers.

A quantized layer runs on the expected kernel only if three links hold. `checkpoint` reads the first, `oracle`
the second (out of the artifact's own Python, never imported), `delivery` the third; `explain` joins them before
anything runs, `bootlog` and `smoke` compare with what really ran.
"""
