// Package image makes the files of the image as the Dockerfile says, without a container engine, and its tests run the
// agent from them as the chart says: the kubelet's part (mounts, token, environment) is here, that of a container runtime is
// in e2e/testbed/contain.
package image
