// Package image builds the image's files as the Dockerfile describes, without a container engine. Its tests prove that the agent
// works with these files and with the privileges that the chart gives it. This package plays the kubelet (mounts, token,
// environment), and e2e/testbed/contain plays the container runtime.
package image
