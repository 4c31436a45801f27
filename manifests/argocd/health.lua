-- Health of an InferencePool for Argo CD (Lua 5.1, without libraries). In argocd-cm it stands under
-- resource.customizations.health.pdpool.io_InferencePool; argocd-cm.yaml beside this file holds it ready to apply.
local health = {}

local function said(status, message)
  health.status = status
  health.message = message
  return health
end

if obj.metadata ~= nil and obj.metadata.deletionTimestamp ~= nil then
  return said("Progressing", "the pool is being deleted")
end

local status = obj.status
if status == nil or status.conditions == nil or status.observedGeneration == nil then
  return said("Progressing", "the operator has not seen the pool yet")
end
if obj.metadata ~= nil and obj.metadata.generation ~= nil and status.observedGeneration < obj.metadata.generation then
  return said("Progressing", "the operator has not seen the last change yet")
end

local by_type = {}
for _, condition in ipairs(status.conditions) do
  by_type[condition.type] = condition
end

local function is(kind, value)
  return by_type[kind] ~= nil and by_type[kind].status == value
end

local function words(kind)
  local condition = by_type[kind]
  if condition == nil then
    return kind .. " is not known"
  end
  if condition.message == nil or condition.message == "" then
    return condition.reason or kind
  end
  return (condition.reason or kind) .. ": " .. condition.message
end

-- Refused, in conflict, or stuck: nothing goes on without somebody.
if is("Stalled", "True") then
  return said("Degraded", words("Stalled"))
end
if is("SpecValid", "False") then
  return said("Degraded", words("SpecValid"))
end

if is("Ready", "True") then
  if is("TransferHealthy", "False") then
    return said("Degraded", words("TransferHealthy"))
  end
  if is("ScalingActive", "False") then
    return said("Degraded", words("ScalingActive"))
  end
  if by_type["Ready"].reason == "ScaledToZero" then
    local spec = obj.spec or {}
    local autoscaled = (spec.decode or {}).autoscaling ~= nil or (spec.prefill or {}).autoscaling ~= nil
    if not autoscaled then
      return said("Suspended", "every role is set to zero replicas")
    end
    -- Asleep by design: the next request wakes it. Suspended would hold up later sync waves.
    return said("Healthy", "scaled to zero; a request wakes it")
  end
  if is("RoutingHealthy", "False") then
    return said("Healthy", words("RoutingHealthy"))
  end
  if is("Advisory", "True") then
    return said("Healthy", words("Advisory"))
  end
  return said("Healthy", words("Ready"))
end

-- Not ready: on its way (also while a Secret is to appear or a node to be added), or fallen from where it had arrived.
if by_type["Ready"] == nil or not is("Progressing", "False") then
  return said("Progressing", words("Ready"))
end
return said("Degraded", words("Ready"))
