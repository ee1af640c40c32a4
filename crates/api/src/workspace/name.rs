//! Names, labels and annotations that both sides rely on.

/// Keeps an object of this group until what belongs to it is gone.
pub const FINALIZER: &str = "workspaces.strata.dev/finalizer";

/// Helm's own limit, which leaves room for suffixes in the names of a release's objects.
pub const MAX_RELEASE_NAME: usize = 53;

/// On every object that strata derives from a Workspace or a User, with the value [`MANAGED_BY`].
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
pub const MANAGED_BY: &str = "strata";
/// The Workspace that an object is derived from.
pub const LABEL_WORKSPACE: &str = "workspaces.strata.dev/workspace";
/// The User that an object is derived from.
pub const LABEL_USER: &str = "workspaces.strata.dev/user";
/// On the claim of a home directory, which has no owner: the uid of the User that it was made for.
pub const LABEL_USER_UID: &str = "workspaces.strata.dev/user-uid";

/// Digest of the object as it was last applied: shows when a field was given up.
pub const DIGEST_ANNOTATION: &str = "workspaces.strata.dev/digest";

/// Any new value asks for a look at once: chart ranges, values and drift are looked up again.
pub const RECONCILE_ANNOTATION: &str = "workspaces.strata.dev/reconcile";
/// Any new value asks for one more operation even if nothing changed or retries are used up.
pub const FORCE_ANNOTATION: &str = "workspaces.strata.dev/force";
/// A revision and anything that makes the value new, `3@2026-01-01T00:00:00Z`: asks for a rollback to that revision,
/// which stays until the spec or its values change.
pub const ROLLBACK_ANNOTATION: &str = "workspaces.strata.dev/rollback";
/// On a HelmRelease, `"true"` allows that its uninstall removes PersistentVolumeClaims of its manifest.
pub const DELETE_DATA_ANNOTATION: &str = "workspaces.strata.dev/delete-data";
