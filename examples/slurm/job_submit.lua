-- Jobs of the managed partition that ask for GPUs enter held; Hither releases them.
-- slurm.conf: JobSubmitPlugins=lua, with this file beside it.

local MANAGED = { gpu = true }

function slurm_job_submit(job, partition_list, uid)
  local partition = job.partition
  if partition == nil then
    for name, partition_record in pairs(partition_list) do
      if partition_record.flag_default == 1 then partition = name end
    end
  end
  local gpus = job.gres or job.tres_per_job
  if MANAGED[partition] and gpus ~= nil and string.find(gpus, "gpu") then
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
