// Package image builds the files of the image as the Dockerfile describes, without a container engine. Its tests prove that the agent
// works with these files and the privileges that the chart gives it. This package plays the kubelet's part (mounts, token,
// environment), and e2e/testbed/contain that of the container runtime.
package image
