# Run by sh -eu in the store's image: two buckets, and a user who may do in them what the nodes do.
# Each start runs it again: the buckets and what is in them stay, the policy and the user's secret become
# what policy.json and .env say now.

export MC_CONFIG_DIR=/tmp/mc
mc alias set store http://s3:9000 "$MINIO_ROOT_USER" "$MINIO_ROOT_PASSWORD"
mc mb --ignore-existing store/masters store/variants
mc admin policy create store audioproxy-node /policy.json
mc admin user add store "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY"
case $(mc admin user info store "$AWS_ACCESS_KEY_ID") in
    *audioproxy-node*) ;;
    *) mc admin policy attach store audioproxy-node --user "$AWS_ACCESS_KEY_ID" ;;
esac
