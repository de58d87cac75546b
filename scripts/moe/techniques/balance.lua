-- Balancing policies in Lua: methods that plan copies or layouts from the exact load of a layer,
-- each in a file of its own with its source and the choices where the source leaves something open.
-- moe.prophet.place applies them to bare counts, beside the placement policies of the engine.
-- An entry: { doc, options = field list, plan = function(layer, options) returning a plan of
-- balance/layer.lua, pooled = whether all slots of a device may hold any expert }.
return {
  echo = require "moe.techniques.balance.echo",
  flexmoe = require "moe.techniques.balance.flexmoe",
  laer = require "moe.techniques.balance.laer",
  llep = require "moe.techniques.balance.llep",
  lplb = require "moe.techniques.balance.lplb",
  moonep = require "moe.techniques.balance.moonep",
}
