-- The same as job_submit.lua without a plugin in the controller: sbatch itself submits held.
-- slurm.conf: CliFilterPlugins=lua, with this file beside it on every submit host. Users can get
-- around it, so prefer job_submit.lua where the controller may have plugins.

local MANAGED = { gpu = true }
local DEFAULT = "gpu"

function slurm_cli_setup_defaults(options, early_pass)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, pack_offset)
  local asks = false
  for _, request in ipairs({ "gres", "gpus", "gpus-per-node", "gpus-per-task" }) do
    asks = asks or (options[request] ~= nil and string.find(request .. options[request], "gpu") ~= nil)
  end
  if options["type"] == "sbatch" and MANAGED[options["partition"] or DEFAULT] and asks then
    options["hold"] = "yes"
  end
  return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
  return slurm.SUCCESS
end
