-- Published figures of Lancet (Jiang et al., MLSys 2024), by id: what the paper says, and where.
return {
  ["lancet-026"] = { figure = "section 1", value = 40, unit = "%",
    text = "all-to-all's share of training time, up to" },
  ["lancet-027"] = { figure = "figure 2", value = 3.36, unit = "x",
    text = "all-to-all time over expert time (V100), up to" },
  ["lancet-034"] = { figure = "figure 11", value = 1.17, unit = "x",
    text = "mean speed-up over the best baseline, Switch gate, A100" },
  ["lancet-035"] = { figure = "figure 11", value = 1.22, unit = "x",
    text = "mean speed-up over the best baseline, Switch gate, V100" },
  ["lancet-036"] = { figure = "figure 12", value = 1.17, unit = "x",
    text = "mean speed-up over the best baseline, Batch Prioritized gate, A100" },
  ["lancet-037"] = { figure = "figure 12", value = 1.21, unit = "x",
    text = "mean speed-up over the best baseline, Batch Prioritized gate, V100" },
  ["lancet-040"] = { figure = "figure 14", value = 3.83, unit = "%",
    text = "error of the predicted iteration time" },
}
