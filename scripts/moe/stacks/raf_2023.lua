-- RAF of 2023, the compiler that Lancet is built into. That it launches one kernel per op, and
-- moves nothing more, is assumed: neither the paper nor its artifact counts kernels.
return function(assumed)
  return {
    doc = "RAF: a compiled graph whose ops the host launches one by one",
    host_launch_us = assumed { value = 8, lo = 2, hi = 12,
      why = "time between kernels of a compiled graph that the host launches one by one",
      source = "none: a guess of the first recipes (dcd51a4a); a host of an H200 takes 3.1 us to "
        .. "give a kernel (row 'launch host' of tests/bench/results/gpu-2026-11-27-h200.json)" },
    host_op_us = 0,
    sources = { host_op_us = "none: no interpreter between ops" },
    ops = {},
  }
end
