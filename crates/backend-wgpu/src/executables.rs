//! Statistics of compiled shaders from Vulkan drivers (`VK_KHR_pipeline_executable_properties`:
//! RADV, ANV, Turnip, NVIDIA).
//!
//! Each text becomes a separate pipeline on a separate device. wgpu does not query statistics, and
//! wgpu cannot open drivers that only compile for absent hardware (`RADV_FORCE_FAMILY`).
#![allow(unsafe_code, reason = "wgpu has no API for these statistics, so Vulkan is called directly")]

use crate::checks::DRIVER_BOUNDS;
use ash::{khr, vk};
use latent_backend::CompiledKernel;
use std::ffi::CStr;
use wgpu::naga::back::spv;
use wgpu::naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use wgpu::naga::valid::{Capabilities, ValidationFlags, Validator};
use wgpu::naga::{AddressSpace, Module, ShaderStage, front::wgsl};

/// A device that compiles shaders and runs none.
pub(crate) struct CompilerDevice {
    device: ash::Device,
    statistics: khr::pipeline_executable_properties::Device,
    instance: ash::Instance,
    /// The loaded library, which must outlive the instance and the device.
    _entry: ash::Entry,
}

impl Drop for CompilerDevice {
    fn drop(&mut self) {
        // SAFETY: `open` created both, all objects created from them are destroyed, and neither is
        // used after this.
        unsafe {
            self.device.destroy_device(None);
            self.instance.destroy_instance(None);
        }
    }
}

impl CompilerDevice {
    /// Opens the driver's device of this name. None if it reports no statistics.
    pub(crate) fn open(name: &str) -> Option<CompilerDevice> {
        // SAFETY: the library is the system's Vulkan loader, whose initialization has no
        // conditions.
        let entry = unsafe { ash::Entry::load() }.ok()?;
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
        let wanted = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: the description lives until the call returns, and names neither layers nor
        // extensions.
        let instance = unsafe { entry.create_instance(&wanted, None) }.ok()?;
        match opened(&instance, name) {
            Some(device) => {
                let statistics = khr::pipeline_executable_properties::Device::new(&instance, &device);
                Some(CompilerDevice { device, statistics, instance, _entry: entry })
            }
            None => {
                // SAFETY: no object was created from it.
                unsafe { instance.destroy_instance(None) };
                None
            }
        }
    }

    /// The statistics of a shader in WGSL. Empty if the driver refuses it.
    pub(crate) fn compiled(&self, text: &str) -> CompiledKernel {
        let found = wgsl::parse_str(text).ok().and_then(|module| {
            let words = self.words(&module)?;
            // SAFETY: naga has validated the module and written these words from it, with the
            // bindings that `bindings` reads from it.
            unsafe { self.of_words(&words, &bindings(&module)) }.ok()
        });
        found.map_or_else(CompiledKernel::default, |statistics| stated(&statistics))
    }

    /// Translates a module to SPIR-V with the options that wgpu uses for `Device::pipeline`.
    fn words(&self, module: &Module) -> Option<Vec<u32>> {
        let info = Validator::new(ValidationFlags::all(), Capabilities::all()).validate(module).ok()?;
        let options = spv::Options {
            // SPIR-V 1.6 belongs to Vulkan 1.3, which `opened` requires.
            lang_version: (1, 6),
            flags: spv::WriterFlags::empty(),
            bounds_check_policies: BoundsCheckPolicies {
                index: BoundsCheckPolicy::Unchecked,
                buffer: BoundsCheckPolicy::Unchecked,
                image_load: BoundsCheckPolicy::Unchecked,
                binding_array: BoundsCheckPolicy::Unchecked,
            },
            zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
            force_loop_bounding: DRIVER_BOUNDS.force_loop_bounding,
            emit_int_div_checks: DRIVER_BOUNDS.int_div_checks,
            ..spv::Options::default()
        };
        let main = spv::PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: "main".into() };
        spv::write_vec(module, &info, &options, Some(&main)).ok()
    }

    /// The statistics of a compute shader: names and values.
    ///
    /// # Safety
    /// The words are valid SPIR-V with an entry point `main` and no other bindings than these.
    unsafe fn of_words(
        &self,
        words: &[u32],
        bindings: &[vk::DescriptorSetLayoutBinding<'_>],
    ) -> Result<Vec<(String, f64)>, vk::Result> {
        let device = &self.device;
        // SAFETY: descriptions live until their calls return. Every object is destroyed below,
        // after the objects created from it. The words are valid by the caller's promise.
        unsafe {
            let wanted = vk::DescriptorSetLayoutCreateInfo::default().bindings(bindings);
            let set = device.create_descriptor_set_layout(&wanted, None)?;
            let sets = [set];
            let layout = device
                .create_pipeline_layout(&vk::PipelineLayoutCreateInfo::default().set_layouts(&sets), None);
            let module =
                device.create_shader_module(&vk::ShaderModuleCreateInfo::default().code(words), None);
            let found = match (layout, module) {
                (Ok(layout), Ok(module)) => self.of_module(module, layout),
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
            if let Ok(module) = module {
                device.destroy_shader_module(module, None);
            }
            if let Ok(layout) = layout {
                device.destroy_pipeline_layout(layout, None);
            }
            device.destroy_descriptor_set_layout(set, None);
            found
        }
    }

    /// # Safety
    /// Both were made by this device, the layout with the module's bindings.
    unsafe fn of_module(
        &self,
        module: vk::ShaderModule,
        layout: vk::PipelineLayout,
    ) -> Result<Vec<(String, f64)>, vk::Result> {
        // Wgpu sets this flag if shaders may use subgroups.
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .flags(vk::PipelineShaderStageCreateFlags::ALLOW_VARYING_SUBGROUP_SIZE)
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(c"main");
        let wanted = vk::ComputePipelineCreateInfo::default()
            .flags(vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR)
            .stage(stage)
            .layout(layout);
        // SAFETY: the handles are valid by the caller's promise. The statistics are plain values,
        // so the pipeline may be destroyed before they are used.
        unsafe {
            let made = self.device.create_compute_pipelines(vk::PipelineCache::null(), &[wanted], None);
            let pipeline = made.map_err(|(_, error)| error)?[0];
            let of = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline);
            let found = self.statistics.get_pipeline_executable_statistics(&of);
            self.device.destroy_pipeline(pipeline, None);
            Ok(found?.iter().map(statistic).collect())
        }
    }
}

/// Opens the physical device of this name with all supported features, and with the extensions that
/// this crate's shaders may need.
fn opened(instance: &ash::Instance, name: &str) -> Option<ash::Device> {
    // An extension may only be enabled if the driver lists it.
    let has = |extensions: &[vk::ExtensionProperties], name: &CStr| {
        extensions.iter().any(|extension| extension.extension_name_as_c_str() == Ok(name))
    };
    // SAFETY: the instance is alive, the physical devices belong to it, and the chains of
    // structures live until each call returns.
    unsafe {
        for physical in instance.enumerate_physical_devices().ok()? {
            let properties = instance.get_physical_device_properties(physical);
            let known = instance.enumerate_device_extension_properties(physical).ok()?;
            if properties.device_name_as_c_str().ok()?.to_string_lossy() != name
                || properties.api_version < vk::API_VERSION_1_3
                || !has(&known, khr::pipeline_executable_properties::NAME)
            {
                continue;
            }
            let robust = has(&known, ash::ext::robustness2::NAME);
            let matrices = has(&known, khr::cooperative_matrix::NAME);
            let mut robustness = vk::PhysicalDeviceRobustness2FeaturesEXT::default();
            let mut matrix = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
            let mut executable = vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default();
            let mut newest = vk::PhysicalDeviceVulkan13Features::default();
            let mut newer = vk::PhysicalDeviceVulkan12Features::default();
            let mut new = vk::PhysicalDeviceVulkan11Features::default();
            let mut features = vk::PhysicalDeviceFeatures2::default();
            features = features
                .push_next(&mut executable)
                .push_next(&mut newest)
                .push_next(&mut newer)
                .push_next(&mut new);
            let mut extensions = vec![khr::pipeline_executable_properties::NAME.as_ptr()];
            if robust {
                features = features.push_next(&mut robustness);
                extensions.push(ash::ext::robustness2::NAME.as_ptr());
            }
            if matrices {
                features = features.push_next(&mut matrix);
                extensions.push(khr::cooperative_matrix::NAME.as_ptr());
            }
            // The device is then created with every supported feature.
            instance.get_physical_device_features2(physical, &mut features);
            let queues = [vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0])];
            let wanted = vk::DeviceCreateInfo::default()
                .queue_create_infos(&queues)
                .enabled_extension_names(&extensions)
                .push_next(&mut features);
            return instance.create_device(physical, &wanted, None).ok();
        }
    }
    None
}

/// The bindings of a module, all in set 0.
fn bindings(module: &Module) -> Vec<vk::DescriptorSetLayoutBinding<'static>> {
    let variables = module.global_variables.iter();
    let bound = variables.filter_map(|(_, variable)| {
        let ty = match variable.space {
            AddressSpace::Uniform => vk::DescriptorType::UNIFORM_BUFFER,
            AddressSpace::Storage { .. } => vk::DescriptorType::STORAGE_BUFFER,
            _ => return None,
        };
        let at = variable.binding.as_ref()?.binding;
        let binding = vk::DescriptorSetLayoutBinding::default().binding(at).descriptor_type(ty);
        Some(binding.descriptor_count(1).stage_flags(vk::ShaderStageFlags::COMPUTE))
    });
    bound.collect()
}

/// The name and the value of a statistic.
fn statistic(found: &vk::PipelineExecutableStatisticKHR<'_>) -> (String, f64) {
    let name = found.name_as_c_str().unwrap_or_default().to_string_lossy().into_owned();
    // SAFETY: the format says which field of the union the driver has written; all bits of each are
    // a value.
    let value = unsafe {
        match found.format {
            vk::PipelineExecutableStatisticFormatKHR::BOOL32 => f64::from(found.value.b32),
            vk::PipelineExecutableStatisticFormatKHR::INT64 => found.value.i64 as f64,
            vk::PipelineExecutableStatisticFormatKHR::UINT64 => found.value.u64 as f64,
            _ => found.value.f64,
        }
    };
    (name, value)
}

// The names of one statistic differ between drivers (RADV, ANV, NVIDIA).
const INSTRUCTIONS: [&str; 2] = ["Instructions", "Instruction Count"];
const REGISTERS: [&str; 3] = ["VGPRs", "Max live registers", "Register Count"];
// NVIDIA's "Local Memory Size" is not among these: driver 580 states 64 GiB for shaders that spill
// nothing.
const SPILLED: [&str; 2] = ["Spilled VGPRs", "Spill Count"];
const CYCLES: [&str; 2] = ["Inverse Throughput", "Cycle Count"];
const SUBGROUPS: [&str; 1] = ["Subgroups per SIMD"];

fn stated(statistics: &[(String, f64)]) -> CompiledKernel {
    let find = |names: &[&str]| {
        let found = names.iter().find_map(|name| statistics.iter().find(|(other, _)| other == name));
        found.map(|(_, value)| *value as u64)
    };
    CompiledKernel {
        instructions: find(&INSTRUCTIONS),
        registers: find(&REGISTERS),
        spilled: find(&SPILLED),
        cycles: find(&CYCLES),
        subgroups: find(&SUBGROUPS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_found_under_each_drivers_names() {
        let named = |names: &[(&str, f64)]| {
            stated(&names.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect::<Vec<_>>())
        };
        let radv =
            named(&[("SGPRs", 32.0), ("VGPRs", 48.0), ("Spilled VGPRs", 2.0), ("Instructions", 900.0)]);
        assert_eq!((radv.instructions, radv.registers, radv.spilled), (Some(900), Some(48), Some(2)));
        let anv = named(&[("Instruction Count", 700.0), ("Spill Count", 0.0)]);
        assert_eq!((anv.instructions, anv.registers, anv.spilled), (Some(700), None, Some(0)));
        let nvidia = named(&[("Register Count", 21.0), ("Local Memory Size", 68_719_476_736.0)]);
        assert_eq!((nvidia.registers, nvidia.spilled), (Some(21), None));
        assert_eq!(named(&[("Hash", 1.0)]), CompiledKernel::default());
    }
}
