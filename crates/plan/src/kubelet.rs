//! Kubelet's words for a container that waits.

use api::condition::Reason;

/// What such a word stands for, if waiting alone does not repair it.
pub(crate) fn problem(word: &str) -> Option<Reason> {
    match word {
        "ErrImagePull"
        | "ImagePullBackOff"
        | "InvalidImageName"
        | "ErrImageNeverPull"
        | "ImageInspectError"
        | "RegistryUnavailable"
        | "SignatureValidationFailed" => Some(Reason::ImagePullFailed),
        "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => {
            Some(Reason::ContainerConfigError)
        }
        "CrashLoopBackOff" => Some(Reason::CrashLoop),
        _ => None,
    }
}
