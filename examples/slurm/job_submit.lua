-- Jobs of the managed partitions that ask for GPUs enter held; Hither places and releases them. Jobs that only
-- Slurm can place stay Slurm's: -w, -x, -C, --exclusive, --reservation.
-- slurm.conf: JobSubmitPlugins=lua, with this file beside it.

local MANAGED = { gpu = true }

local function asks_for_gpus(job)
  for _, request in ipairs({ "gres", "tres_per_job", "tres_per_node", "tres_per_task", "tres_per_socket" }) do
    if job[request] ~= nil and string.find(job[request], "gpu") then return true end
  end
  return false
end

local function is_slurms(job)
  for _, request in ipairs({ "req_nodes", "exc_nodes", "features", "reservation" }) do
    if job[request] ~= nil and job[request] ~= "" then return true end
  end
  return job.shared == 0
end

function slurm_job_submit(job, partition_list, uid)
  local partition = job.partition
  if partition == nil then
    for name, partition_record in pairs(partition_list) do
      if partition_record.flag_default == 1 then partition = name end
    end
  end
  if MANAGED[partition] and asks_for_gpus(job) and not is_slurms(job) then
    job.priority = 0
    -- `HITHER_MODEL=bert sbatch …` saves users a comment.
    local model = job.environment and job.environment.HITHER_MODEL
    if model and not string.find(job.comment or "", "hither:") then
      job.comment = (job.comment or "") .. " hither: model=" .. model
    end
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partition_list, uid)
  return slurm.SUCCESS
end
