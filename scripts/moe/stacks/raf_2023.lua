-- RAF of 2023, the compiler that Lancet is built into. That it launches one kernel per op, and
-- moves nothing more, is assumed: neither the paper nor its artifact counts kernels.
return function(assumed)
  return {
    doc = "RAF: a compiled graph whose ops the host launches one by one",
    host_launch_us = assumed { value = 8, lo = 2, hi = 12,
      why = "time between kernels of a compiled graph that the host launches one by one" },
    host_op_us = 0,
    ops = {},
  }
end
